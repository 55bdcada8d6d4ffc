package ddp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Rank 0's buffers are everyone's when a window begins, behind what the last
// window's forward passes have enqueued; each type is one message. While rank 0
// has no data, it is the lowest rank that has.
func TestBuffersFollowRankZero(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("ranks=", n), func(t *testing.T) {
			ranks(t, n, seven, func(w *worker) {
				buffers := testBuffers(w)
				if !w.start(Options{PlanOptions: small, Buffers: buffers}) {
					return
				}
				holds := func(what string, want int) {
					w.compute.Do("look at buffers", func() error {
						for _, b := range buffers {
							if got := value(w.see(b.Tensor)); b.Numel() > 0 && got != want {
								t.Errorf("rank %d: %s, %s is %d, want %d", w.rank, what, b.Name, got, want)
							}
						}
						return nil
					})
				}
				write := func(v int) {
					w.compute.Do("forward", func() error {
						for _, b := range buffers {
							fill(w.see(b.Tensor), v)
						}
						return nil
					})
				}
				lead := 0
				for step := range 4 {
					more := w.rank != 0 || step < 2 || n == 1
					if step >= 2 && n > 1 {
						lead = 1
					}
					if _, err := w.ddp.Join(w.ctx, more); !w.ok("Join", err) {
						return
					}
					write(10*step + w.rank)
					for micro := range 2 {
						if !w.ok("StepBegin", w.ddp.StepBegin(micro == 1)) {
							return
						}
						if micro == 0 {
							holds("at the beginning of a window", 10*step+lead)
							write(100 + 10*step + w.rank)
						} else {
							holds("within a window", 100+10*step+w.rank)
						}
						for _, p := range w.params {
							if more && !p.Frozen {
								w.give(p, constant(1))
							}
						}
						if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
							return
						}
					}
					s, err := w.ddp.Stats(w.ctx)
					if !w.ok("Stats", err) {
						return
					}
					exposed, _ := w.ddp.buckets[len(w.ddp.buckets)-1].after.Since(w.ddp.timeline.end)
					if n > 1 {
						copied, _ := w.ddp.copying[1].Since(w.ddp.copying[0])
						exposed += copied
					}
					if s.Exposed != exposed {
						t.Errorf("rank %d: exposed %s, want %s", w.rank, s.Exposed, exposed)
					}
				}
				if !w.ok("BroadcastBuffers", w.ddp.BroadcastBuffers()) {
					return
				}
				holds("for an evaluation", 100+30+lead)
				w.synchronize()
				var broadcasts []string
				for _, c := range w.calls() {
					if strings.HasPrefix(c, "Broadcast(") && !strings.HasPrefix(c, "Broadcast(i32") {
						broadcasts = append(broadcasts, c)
					}
				}
				if want := 5 * 3; n > 1 && w.calls() != nil && len(broadcasts) != want {
					t.Errorf("rank %d: %d messages for 5 copies of three types: %v", w.rank, len(broadcasts), broadcasts)
				}
			})
		})
	}
}

// testBuffers are five tensors of three types, and an empty one.
func testBuffers(w *worker) []Buffer {
	var list []Buffer
	for name, spec := range map[string]struct {
		dt    dtype.DType
		shape []int
	}{
		"a.mean": {dtype.F32, []int{5}}, "a.var": {dtype.F32, []int{3, 2}}, "a.seen": {dtype.I64, []int{}},
		"b.mean": {dtype.F64, []int{4}}, "b.seen": {dtype.I64, []int{1}}, "none": {dtype.U8, []int{0}},
	} {
		list = append(list, Buffer{name, w.alloc(spec.dt, spec.shape...)})
	}
	slices.SortFunc(list, func(a, b Buffer) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// value is what all elements of b are, -1 where they differ.
func value(b tensor.Tensor) int {
	var all []int
	switch b.DType {
	case dtype.I64:
		for _, x := range device.View[int64](b.Buf) {
			all = append(all, int(x))
		}
	default:
		load := loader(b)
		for e := range b.Numel() {
			all = append(all, int(load(e)))
		}
	}
	if all = slices.Compact(all); len(all) != 1 {
		return -1
	}
	return all[0]
}

func fill(b tensor.Tensor, v int) {
	switch b.DType {
	case dtype.I64:
		for i := range device.View[int64](b.Buf) {
			device.View[int64](b.Buf)[i] = int64(v)
		}
	default:
		store := storer(b)
		for e := range b.Numel() {
			store(e, float64(v))
		}
	}
}

func TestBuffersAreChecked(t *testing.T) {
	elsewhere := []Buffer{{"c", tensor.New(device.At(4096, 12), dtype.F32, 3)}}
	if err := checkBuffers(elsewhere, device.NewCPU()); err == nil || !strings.Contains(err.Error(), "buffer c is not in host memory") {
		t.Errorf("memory of a device, for streams of the CPU: %v", err)
	}
	memory := tensor.New(device.Of(make([]float32, 3)), dtype.F32, 3)
	for want, list := range map[string][]Buffer{
		"two buffers are called a": {{"a", memory}, {"a", memory}},
		"buffer b has no memory":   {{"b", tensor.Tensor{}}},
	} {
		ranks(t, 2, seven, func(w *worker) {
			var o Options
			if w.rank == 1 {
				o.Buffers = list
			}
			w.wants(w.new(o), want)
		})
	}
	ranks(t, 3, seven, func(w *worker) {
		o := Options{Buffers: []Buffer{{"mean", memory}}}
		if w.rank == 1 {
			o.Buffers[0].Tensor = tensor.New(device.Of(make([]float64, 3)), dtype.F64, 3)
		}
		w.wants(w.new(o), "buffer mean: ranks 0, 2 have f32[3], rank 1 has f64[3]")
	})
	ranks(t, 1, seven, func(w *worker) {
		if w.start(Options{Buffers: []Buffer{{"mean", memory}}}) && w.ok("StepBegin", w.ddp.StepBegin(true)) {
			w.wants(w.ddp.BroadcastBuffers(), "BroadcastBuffers within a micro-step")
		}
	})
}
