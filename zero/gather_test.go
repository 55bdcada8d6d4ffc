package zero

import (
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// held is a group whose AllGathers do not begin before the gate is open, but for the
// first few.
type held struct {
	Group
	gate chan struct{}
	free *int // how many of the next go at once
}

func (g held) AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work {
	if *g.free--; *g.free < 0 {
		s.(hostStream).Do("held", func() error { <-g.gate; return nil })
	}
	return g.Group.AllGather(s, dst, src, dt)
}

// The forward pass begins with the first block's weights, while those of all others are
// still on their way: nothing but the block that needs them waits.
func TestTheForwardPassBeginsBesideTheGathers(t *testing.T) {
	const layers = 5
	for stage := 1; stage <= 3; stage++ {
		ranks(t, 3, func() []*param.Param { return deep(layers, dtype.BF16) }, func(w *worker) {
			g := held{w.group, make(chan struct{}), new(int)}
			w.group = g
			*g.free = 1000 // what New compares, and the first weights
			started := w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 1}})
			w.group = g.Group
			if !started {
				return
			}
			for range 2 { // so that stage 3 knows what to expect
				for block := range layers {
					w.zero.Use(block)
					w.zero.Done(block)
				}
				if !w.ok("Gather", w.zero.Gather()) || !w.synchronize() {
					return
				}
			}
			var open atomic.Bool
			defer func() {
				if open.CompareAndSwap(false, true) {
					close(g.gate)
				}
			}()
			*g.free = 3 // the parameters of the first block
			if !w.ok("Gather", w.zero.Gather()) {
				return
			}
			w.zero.Use(0)
			w.compute.Do("forward", func() error { return nil })
			w.zero.Done(0)
			if !w.ok("the first block's forward pass beside the gathers", w.compute.Record().Sync(w.ctx)) {
				return
			}
			early := false
			for block := 1; block < layers; block++ {
				w.zero.Use(block)
				w.compute.Do("forward", func() error { early = early || !open.Load(); return nil })
				w.zero.Done(block)
			}
			open.Store(true)
			close(g.gate)
			if w.synchronize() && early {
				w.t.Errorf("stage %d, rank %d: a block was computed before its weights had come", stage, w.rank)
			}
		})
	}
}
