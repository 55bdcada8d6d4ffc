package ddp

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// plain is the least a GradSink can be.
type plain map[*param.Param]tensor.Tensor

func (s plain) Get(p *param.Param) (tensor.Tensor, bool) { return s[p], false }
func (s plain) Ready(*param.Param)                       {}

// layers is a backward pass of 64 layers of less than 0.1 ms each.
type layers struct {
	params  []*param.Param
	compute *device.CPUStream
}

func newLayers(compute *device.CPUStream) layers {
	l := layers{compute: compute}
	for i := range 64 {
		l.params = append(l.params, &param.Param{Name: string(rune('A' + i)), Shape: []int{64 << 10}, DType: dtype.F32})
	}
	return l
}

func (l layers) backward(sink param.GradSink) {
	for _, p := range slices.Backward(l.params) {
		grad, _ := sink.Get(p)
		l.compute.Do("layer", func() error {
			g := grad.F32()
			for range 3 {
				for e := range g {
					g[e] = g[e]*0.5 + float32(e)
				}
			}
			return nil
		})
		sink.Ready(p)
	}
}

// own is memory for the gradients of a plain sink.
func (l layers) own(b *testing.B) plain {
	own := plain{}
	for _, p := range l.params {
		grad, err := tensor.Alloc(l.compute.Device(), p.DType, p.Shape...)
		if err != nil {
			b.Fatal(err)
		}
		own[p] = grad
	}
	return own
}

// nineBuckets is a plan of 9 buckets for the 16 MiB of gradients of layers.
var nineBuckets = PlanOptions{BucketCap: 2 << 20}

// BenchmarkOneRank runs a backward pass into a plain sink and into a DDP of one
// rank with 9 buckets, turn by turn, and reports the ratio of the two medians. It
// must stay below 1.03.
func BenchmarkOneRank(b *testing.B) {
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer compute.Close()
	defer comms.Close()
	l := newLayers(compute)
	d, err := New(b.Context(), newHub(1)[0], compute, comms, l.params, Options{PlanOptions: nineBuckets})
	if err != nil {
		b.Fatal(err)
	}
	own := l.own(b)
	var without, with []time.Duration
	for b.Loop() {
		without = append(without, took(b, compute, func() error { l.backward(own); return nil }))
		with = append(with, took(b, compute, func() error { return step(b.Context(), d, l) }))
	}
	b.ReportMetric(float64(median(with))/float64(median(without)), "ddp/plain")
}

// BenchmarkTwoRanks is the same with two ranks of this process that share memory,
// each on a core of its own where there are two: the median of a backward pass
// without reduction, of one that overlaps with it and of one followed by it, and
// how much of the reduction is exposed.
func BenchmarkTwoRanks(b *testing.B) {
	// A group learns how long to wait for others, which differs between the two.
	var kinds [2][]*comm.Group
	for i := range kinds {
		var err error
		if kinds[i], err = comm.Local(2, comm.Options{Transport: "shm", Logger: slog.New(slog.DiscardHandler)}); err != nil {
			b.Fatal(err)
		}
	}
	rounds := make(chan struct{})
	var ranks, round sync.WaitGroup
	for r := range 2 {
		ranks.Go(func() {
			groups := [2]*comm.Group{kinds[0][r], kinds[1][r]}
			if err := twoRanks(b, groups, rounds, &round); err != nil {
				b.Error(err)
				for _, g := range groups {
					g.Abort(err)
				}
				for range rounds {
					round.Done()
				}
			}
			for _, g := range groups {
				g.Close()
			}
		})
	}
	for b.Loop() {
		round.Add(2)
		for range 2 {
			rounds <- struct{}{}
		}
		round.Wait()
	}
	close(rounds)
	ranks.Wait()
}

// twoRanks is one rank of BenchmarkTwoRanks. It makes a pass of each kind when
// told to.
func twoRanks(b *testing.B, groups [2]*comm.Group, rounds <-chan struct{}, round *sync.WaitGroup) error {
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer comms.Close()
	defer compute.Close()
	l := newLayers(compute)
	own := l.own(b)
	var sinks [2]*DDP
	for i := range sinks {
		var err error
		if sinks[i], err = New(b.Context(), groups[i], compute, comms, l.params, Options{PlanOptions: nineBuckets, NoOverlap: i == 1}); err != nil {
			return err
		}
	}
	var without []time.Duration
	var with, exposed [2][]time.Duration
	for range rounds {
		without = append(without, took(b, compute, func() error { l.backward(own); return nil }))
		for i, d := range sinks {
			with[i] = append(with[i], took(b, compute, func() error { return step(b.Context(), d, l) }))
			s, err := d.Stats(b.Context())
			if err != nil {
				return err
			}
			exposed[i] = append(exposed[i], s.Exposed)
		}
		round.Done()
	}
	if groups[0].Rank() == 0 {
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		b.ReportMetric(us(median(without)), "plain-µs")
		for i, name := range []string{"overlap", "after"} {
			b.ReportMetric(us(median(with[i])), name+"-µs")
			b.ReportMetric(us(median(exposed[i])), name+"-exposed-µs")
		}
	}
	return nil
}

func step(ctx context.Context, d *DDP, l layers) error {
	if err := d.StepBegin(true); err != nil {
		return err
	}
	l.backward(d)
	return d.Finish(ctx)
}

// took is how long the compute stream takes for what f enqueues.
func took(b *testing.B, compute *device.CPUStream, f func() error) time.Duration {
	start := time.Now()
	if err := f(); err != nil {
		b.Error(err)
	}
	if err := compute.Synchronize(b.Context()); err != nil {
		b.Error(err)
	}
	return time.Since(start)
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}
