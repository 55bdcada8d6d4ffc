package ddp

import (
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// plain is the least a GradSink can be.
type plain map[*param.Param]tensor.Tensor

func (s plain) Get(p *param.Param) (tensor.Tensor, bool) { return s[p], false }
func (s plain) Ready(*param.Param)                       {}

// BenchmarkOneRank runs a backward pass of 64 layers of less than 0.1 ms each
// into a plain sink and into a DDP of one rank with 9 buckets, turn by turn, and
// reports the ratio of the two medians. It must stay below 1.03.
func BenchmarkOneRank(b *testing.B) {
	var params []*param.Param
	for i := range 64 {
		params = append(params, &param.Param{Name: string(rune('A' + i)), Shape: []int{64 << 10}, DType: dtype.F32})
	}
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer compute.Close()
	defer comms.Close()
	d, err := New(b.Context(), newHub(1)[0], compute, comms, params, Options{PlanOptions: PlanOptions{BucketCap: 2 << 20}})
	if err != nil {
		b.Fatal(err)
	}
	own := plain{}
	for _, p := range params {
		if own[p], err = tensor.Alloc(compute.Device(), p.DType, p.Shape...); err != nil {
			b.Fatal(err)
		}
	}
	backward := func(sink param.GradSink) {
		for i := len(params) - 1; i >= 0; i-- {
			grad, _ := sink.Get(params[i])
			compute.Do("layer", func() error {
				g := grad.F32()
				for range 3 {
					for e := range g {
						g[e] = g[e]*0.5 + float32(e)
					}
				}
				return nil
			})
			sink.Ready(params[i])
		}
	}
	sync := func() {
		if err := compute.Synchronize(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	var without, with []time.Duration
	for b.Loop() {
		start := time.Now()
		backward(own)
		sync()
		middle := time.Now()
		if err := d.StepBegin(true); err != nil {
			b.Fatal(err)
		}
		backward(d)
		if err := d.Finish(b.Context()); err != nil {
			b.Fatal(err)
		}
		sync()
		without = append(without, middle.Sub(start))
		with = append(with, time.Since(middle))
	}
	slices.Sort(without)
	slices.Sort(with)
	b.ReportMetric(float64(with[len(with)/2])/float64(without[len(without)/2]), "ddp/plain")
}
