package ddp

import (
	"math"
	"strings"
	"testing"
)

// uses says which parameters each of the three ranks has gradients of: a.w on
// rank 0 only, b.b on ranks 1 and 2, a.b on none.
func uses(rank int, name string) bool {
	switch name {
	case "a.w":
		return rank == 0
	case "b.b":
		return rank > 0
	case "a.b", "frozen":
		return false
	}
	return true
}

// What a rank does not use counts as zero; what no rank uses is absent; nothing
// of an earlier step shines through. A gradient of an earlier micro-step of the
// window stays.
func TestUnusedParameters(t *testing.T) {
	for _, static := range []bool{false, true} {
		ranks(t, 3, seven, func(w *worker) {
			if !w.start(Options{PlanOptions: small, FindUnused: true, StaticGraph: static}) {
				return
			}
			for step := range 4 {
				const accumulate = 2
				for micro := range accumulate {
					if !w.ok("StepBegin", w.ddp.StepBegin(micro == accumulate-1)) {
						return
					}
					for i := len(w.params) - 1; i >= 0; i-- {
						p := w.params[i]
						// Without StaticGraph some gradients come in the first micro-step only.
						if uses(w.rank, p.Name) && (static || micro == 0 || p.Name != "a.w" && p.Name != "head") {
							w.give(p, constant(float32(step+w.rank+1)))
						}
					}
					if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
						return
					}
				}
				if !w.synchronize() {
					return
				}
				for _, p := range w.params {
					users, sum := 0, 0.0
					for r := range 3 {
						if uses(r, p.Name) {
							users++
							times := accumulate
							if !static && (p.Name == "a.w" || p.Name == "head") {
								times = 1
							}
							sum += float64(times * (step + r + 1))
						}
					}
					switch {
					case p.Frozen:
					case users > 0:
						w.holds(p.Name, w.ddp.Grad(p), exactly(sum))
					case !w.ddp.Grad(p).None():
						w.t.Errorf("rank %d: %s is used nowhere, and has a gradient", w.rank, p.Name)
					}
				}
				for i, b := range w.ddp.Buckets() {
					for _, x := range w.see(b.Flat).F32() {
						if math.Abs(float64(x)) > 100 {
							w.t.Errorf("bucket %d holds %v", i, x)
						}
					}
				}
			}
			bitmaps := 0
			for _, c := range w.calls() {
				if strings.HasPrefix(c, "AllReduce(sum, i32") {
					bitmaps++
				}
			}
			if want := map[bool]int{false: 4, true: 1}[static]; w.calls() != nil && bitmaps != want {
				w.t.Errorf("rank %d asked %d times which gradients are used, want %d", w.rank, bitmaps, want)
			}
		})
	}
}

// With StaticGraph unused parameters do not hold back their buckets: all have
// left before Finish.
func TestStaticGraphKeepsTheOverlap(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small, FindUnused: true, StaticGraph: true}) {
			return
		}
		for step := range 3 {
			if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
				return
			}
			for _, p := range w.params {
				if uses(w.rank, p.Name) {
					w.give(p, constant(1))
				}
			}
			if left := w.ddp.next; step > 0 && left != len(w.ddp.buckets) {
				w.t.Errorf("rank %d, step %d: %d of %d buckets have left", w.rank, step, left, len(w.ddp.buckets))
			}
			if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
				return
			}
		}
	})
}

// A static graph that changes is an error that names the parameter, in the same
// step and on every rank.
func TestStaticGraphThatChanges(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(name string) bool // on rank 1 in the second step
		want string
	}{
		{"less", func(name string) bool { return uses(1, name) && name != "head" }, "no gradient for head, used in the first micro-step"},
		{"more", func(name string) bool { return uses(1, name) || name == "a.b" }, "a.b has a gradient, and had none in the first micro-step"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks(t, 3, seven, func(w *worker) {
				if !w.start(Options{PlanOptions: small, FindUnused: true, StaticGraph: true}) {
					return
				}
				var err error
				for step := range 2 {
					if step == 1 {
						w.ok("first step", w.compute.Synchronize(w.ctx))
						w.meet()
					}
					if err = w.ddp.StepBegin(true); err != nil {
						break
					}
					for _, p := range w.params {
						use := uses(w.rank, p.Name)
						if step == 1 && w.rank == 1 {
							use = c.use(p.Name)
						}
						if use {
							w.give(p, constant(1))
						}
					}
					if err = w.ddp.Finish(w.ctx); err != nil {
						break
					}
				}
				if err == nil {
					err = w.compute.Synchronize(w.ctx)
				}
				w.wants(err, c.want, "rank 1", "micro-step 2")
			})
		})
	}
}

// A gradient that was asked for and never finished is no unused one.
func TestFindUnusedGetWithoutReady(t *testing.T) {
	ranks(t, 1, seven, func(w *worker) {
		if !w.start(Options{FindUnused: true}) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
			return
		}
		w.write(w.params[3], constant(1))
		w.wants(w.ddp.Finish(w.ctx), "Get of b.w without Ready")
	})
}
