package ddp

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// The host enqueues steps, learns the order, asks who uses what and who has data,
// and never waits for a GPU: all of that goes on while its compute stream stands.
func TestTheHostWaitsForNoDevice(t *testing.T) {
	for _, o := range []Options{
		{PlanOptions: small},
		{PlanOptions: small, FindUnused: true, ReduceDType: dtype.F64},
		{PlanOptions: small, FindUnused: true, StaticGraph: true},
	} {
		t.Run(fmt.Sprintf("unused=%t static=%t", o.FindUnused, o.StaticGraph), func(t *testing.T) {
			ranks(t, 3, seven, func(w *worker) {
				if w.gpu == nil {
					return // the order and the uses are then asked for behind the buckets
				}
				o := o // of this rank
				o.Buffers = []Buffer{{"mean", w.alloc(dtype.F32, 4)}}
				if !w.start(o) {
					return
				}
				gate := make(chan struct{})
				w.compute.Do("stand", func() error { <-gate; return nil })
				enqueued := true
				for step := 0; step < 3 && enqueued; step++ {
					enqueued = w.enqueueStep(step)
				}
				close(gate)
				if !enqueued || !w.synchronize() {
					return
				}
				for i, p := range w.params {
					if !p.Frozen {
						w.holds(p.Name, w.ddp.Grad(p), func(e int) float64 {
							return float64(gradient(0, 2, 0, i, e) + gradient(1, 2, 0, i, e) + gradient(2, 2, 0, i, e))
						})
					}
				}
			})
		})
	}
}

// enqueueStep is Join and a synced micro-step, in an order of the rank's own.
func (w *worker) enqueueStep(step int) bool {
	_, err := w.ddp.Join(w.ctx, true)
	if !w.ok("Join", err) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
		return false
	}
	for k := range w.params {
		i := (len(w.params) - 1 - k + w.rank*(step+1)) % len(w.params)
		if p := w.params[i]; !p.Frozen {
			w.give(p, func(e int) float32 { return gradient(w.rank, step, 0, i, e) })
		}
	}
	return w.ok("Finish", w.ddp.Finish(w.ctx))
}

// Events go back to the device: a step holds as many as the one before.
func TestEventsAreReleased(t *testing.T) {
	for _, n := range []int{1, 2} {
		ranks(t, n, seven, func(w *worker) {
			if w.gpu == nil || !w.start(Options{PlanOptions: small, Buffers: []Buffer{{"mean", w.alloc(dtype.F32, 4)}}}) {
				return
			}
			held := 0
			for step := range 5 {
				for micro := range 3 {
					if !w.ok("StepBegin", w.ddp.StepBegin(micro == 2)) {
						return
					}
					for _, p := range w.params {
						if !p.Frozen {
							w.give(p, constant(1))
						}
					}
					if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
						return
					}
				}
				if !w.ok("BroadcastBuffers", w.ddp.BroadcastBuffers()) {
					return
				}
				if _, err := w.ddp.Stats(w.ctx); !w.ok("Stats", err) {
					return
				}
				now := w.gpu.Events()
				if step > 0 && now != held {
					t.Errorf("%d ranks: %d events are held after step %d, %d after the one before", n, now, step, held)
				}
				held = now
			}
		})
	}
}

// held is a group that lets no reduction begin before its rank's gate is open.
type held struct {
	Group
	gate *chan struct{}
}

func (g held) AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	gate := *g.gate
	s.(hostStream).Do("delay", func() error { <-gate; return nil })
	return g.Group.AllReduce(s, buf, dt, op)
}

// A communication stream that is late changes nothing but time: gradients are
// bit-identical to those of a prompt one, whose reductions overlap with the
// backward pass.
func TestDelaysChangeNothingButTime(t *testing.T) {
	value := func(r, step, micro, i, e int) float32 {
		return float32(math.Sin(float64(1000*r + 100*step + 17*micro + 7*i + e)))
	}
	for _, o := range []Options{
		{PlanOptions: small, Op: comm.Avg},
		{PlanOptions: PlanOptions{FirstBucket: 64, BucketCap: 48, GradDType: dtype.BF16}, ReduceDType: dtype.F32},
	} {
		o.Order = mustPlan(t, seven(), o.PlanOptions).Order() // so that the host has no reason to wait
		ranks(t, 3, seven, func(w *worker) {
			var seen [2][]float64
			for late := range 2 {
				prompt := w.group
				gate := make(chan struct{})
				if late == 1 {
					w.group = held{prompt, &gate}
				}
				started := w.start(o)
				w.group = prompt
				if !started {
					return
				}
				for step := range 3 {
					for micro := range 2 {
						if !w.ok("StepBegin", w.ddp.StepBegin(micro == 1)) {
							return
						}
						for i := len(w.params) - 1; i >= 0; i-- {
							if p := w.params[i]; !p.Frozen {
								w.give(p, func(e int) float32 { return value(w.rank, step, micro, i, e) })
							}
						}
						if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
							return
						}
					}
					for _, b := range w.ddp.Buckets() {
						w.compute.Do("optimizer", func() error {
							seen[late] = append(seen[late], elements(w.see(b.Flat))...)
							return nil
						})
					}
					close(gate) // behind all that the host had to enqueue, the optimizer included
					gate = make(chan struct{})
				}
				if !w.synchronize() {
					return
				}
			}
			if len(seen[0]) == 0 || len(seen[0]) != len(seen[1]) {
				w.t.Errorf("rank %d: %d elements, %d with delays", w.rank, len(seen[0]), len(seen[1]))
				return
			}
			for i := range seen[0] {
				if seen[0][i] != seen[1][i] {
					w.t.Errorf("rank %d: element %d is %v, with delays %v", w.rank, i, seen[0][i], seen[1][i])
					return
				}
			}
		})
	}
}

func elements(t tensor.Tensor) []float64 {
	list, load := make([]float64, t.Numel()), loader(t)
	for i := range list {
		list[i] = load(i)
	}
	return list
}
