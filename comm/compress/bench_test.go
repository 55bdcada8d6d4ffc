package compress

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// BenchmarkReduce is what a bucket of 8 MiB takes on two ranks of this machine, whose
// links cost next to nothing: the price of the schemes themselves.
func BenchmarkReduce(b *testing.B) {
	for _, o := range []Options{{Scheme: FP16}, {Scheme: BF16}, {Scheme: Int8}, {Scheme: TopK}, {Scheme: PowerSGD}, {Scheme: PowerSGD, Rank: 4}} {
		b.Run(fmt.Sprint(o.Scheme, o.Rank), func(b *testing.B) {
			groups, err := comm.Local(2)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(8 << 20)
			var all sync.WaitGroup
			for _, g := range groups {
				all.Go(func() {
					defer g.Close()
					if err := reduceOften(b.N, g, o); err != nil {
						b.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
}

func reduceOften(times int, g *comm.Group, o Options) error {
	p := &param.Param{Name: "p", Shape: []int{1024, 2048}, DType: dtype.F32}
	l := layout([]*param.Param{p}, 2, false, 1<<30)
	s := device.NewCPUStream("comm", nil)
	defer s.Close()
	c, err := New(o)
	if err != nil {
		return err
	}
	if err := c.Open((&rank{g: g}).env(), l); err != nil {
		return err
	}
	flat, err := tensor.Alloc(device.NewCPU(), dtype.F32, p.Numel())
	if err != nil {
		return err
	}
	for i := range flat.F32() {
		flat.F32()[i] = noise(p, g.Rank(), 0, i)
	}
	for range times {
		c.Begin()
		c.Reduce(s, 0, flat)
	}
	return s.Close()
}
