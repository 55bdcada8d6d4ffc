package ddp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// epoch trains on counts[rank] windows with Join, after all of which every rank
// must have left in the same round. seen is called after each window.
func (w *worker) epoch(counts []int, values func(r, round, i int) float32, seen func(round int)) bool {
	for round := 0; ; round++ {
		more := round < counts[w.rank]
		present, err := w.ddp.Join(w.ctx, more)
		if !w.ok("Join", err) {
			return false
		}
		want := 0
		for _, n := range counts {
			if round < n {
				want++
			}
		}
		if present != want {
			w.t.Errorf("rank %d, round %d: %d ranks have data, want %d", w.rank, round, present, want)
			return false
		}
		if present == 0 {
			if last := slices.Max(counts); round != last {
				w.t.Errorf("rank %d left in round %d, want %d", w.rank, round, last)
			}
			return true
		}
		if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
			return false
		}
		if more {
			for i := len(w.params) - 1; i >= 0; i-- {
				if p := w.params[i]; !p.Frozen {
					w.give(p, constant(values(w.rank, round, i)))
				}
			}
		}
		if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
			return false
		}
		seen(round)
	}
}

// Ranks with different numbers of batches make the same calls and leave
// together; the gradient of each window is the sum over the ranks that have
// data, divided by all for Avg, whoever runs out first, in each of two epochs.
func TestUnevenRanksLeaveTogether(t *testing.T) {
	value := func(r, round, i int) float32 { return float32((r+1)*(i+2) + 7*round) }
	for _, counts := range [][]int{{3}, {0, 2}, {2, 0, 5}, {4, 1, 3, 2}, {0, 0, 0, 1}, {2, 2, 2}, {0, 0}} {
		for _, o := range []Options{
			{PlanOptions: small},
			{PlanOptions: small, Op: comm.Avg},
			{PlanOptions: small, NoOverlap: true, ReduceDType: dtype.F64},
			{PlanOptions: small, FindUnused: true},
			{PlanOptions: small, FindUnused: true, StaticGraph: true},
		} {
			t.Run(fmt.Sprintf("counts=%v op=%s overlap=%t unused=%t static=%t", counts, o.Op, !o.NoOverlap, o.FindUnused, o.StaticGraph), func(t *testing.T) {
				calls := make([][]string, len(counts))
				ranks(t, len(counts), seven, func(w *worker) {
					if !w.start(o) {
						return
					}
					for range 2 {
						if !w.epoch(counts, value, func(round int) {
							for i, p := range w.params {
								sum := 0.0
								for r, n := range counts {
									if round < n {
										sum += float64(value(r, round, i))
									}
								}
								if o.Op == comm.Avg {
									sum /= float64(len(counts))
								}
								if !p.Frozen {
									w.holds(p.Name, w.ddp.Grad(p), exactly(float64(float32(sum))))
								}
							}
						}) {
							return
						}
					}
					if c := w.calls(); c != nil {
						calls[w.rank] = c
					}
				})
				for r := range calls {
					if !slices.Equal(calls[r], calls[0]) {
						t.Errorf("rank %d made the calls %v, rank 0 %v", r, calls[r], calls[0])
					}
				}
			})
		}
	}
}

// The order that everyone follows is that of the first rank with data.
func TestOrderComesFromARankWithData(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) {
			return
		}
		if _, err := w.ddp.Join(w.ctx, w.rank > 0); !w.ok("Join", err) || !w.ok("StepBegin", w.ddp.StepBegin(true)) {
			return
		}
		order := map[int][]int{1: {2, 0, 6, 1, 4, 3}, 2: {0, 1, 2, 3, 4, 6}}[w.rank]
		for _, i := range order {
			w.give(w.params[i], constant(1))
		}
		if !w.ok("Finish", w.ddp.Finish(w.ctx)) {
			return
		}
		if got, want := w.ddp.Order(), []string{"a.b", "embed", "head", "a.w", "b.b", "b.w"}; !slices.Equal(got, want) {
			w.t.Errorf("rank %d: order %v, want %v", w.rank, got, want)
		}
		w.synchronize()
	})
}

// Under StaticGraph what a rank uses is learned when it has data: it may be out
// of data at first, as in an epoch that gives it none.
func TestStaticGraphOfARankThatComesLater(t *testing.T) {
	ranks(t, 3, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small, FindUnused: true, StaticGraph: true}) {
			return
		}
		for epoch := range 3 {
			for round := range 2 {
				more := round == 0 && (epoch > 0 || w.rank > 0) // rank 0, alone in using a.w, comes in the second epoch
				present, err := w.ddp.Join(w.ctx, more)
				if !w.ok("Join", err) {
					return
				}
				if present == 0 {
					continue
				}
				if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
					return
				}
				for i := len(w.params) - 1; more && i >= 0; i-- {
					if uses(w.rank, w.params[i].Name) {
						w.give(w.params[i], constant(float32(w.rank+1)))
					}
				}
				if !w.ok("Finish", w.ddp.Finish(w.ctx)) || !w.synchronize() {
					return
				}
				if grad := w.ddp.Grad(w.params[1]); epoch == 0 && !grad.None() {
					w.t.Errorf("rank %d: a.w is used nowhere yet, and has a gradient", w.rank)
				} else if epoch > 0 {
					w.holds("a.w", grad, exactly(1))
				}
				w.holds("b.b", w.ddp.Grad(w.params[4]), exactly(5))
				if !w.ddp.Grad(w.params[2]).None() {
					w.t.Errorf("rank %d: a.b is used nowhere, and has a gradient", w.rank)
				}
			}
		}
		bitmaps := 0
		for _, c := range w.calls() {
			if strings.HasPrefix(c, "AllReduce(sum, i32") {
				bitmaps++
			}
		}
		if w.calls() != nil && bitmaps != 2 {
			w.t.Errorf("rank %d asked %d times which gradients are used, want twice: without rank 0, and with it", w.rank, bitmaps)
		}
	})
}

// A rank may begin fewer micro-steps than others in its last window.
func TestLastWindowMayBeShort(t *testing.T) {
	ranks(t, 2, seven, func(w *worker) {
		if !w.start(Options{PlanOptions: small}) {
			return
		}
		if _, err := w.ddp.Join(w.ctx, true); !w.ok("Join", err) {
			return
		}
		micros := []int{3, 1}[w.rank]
		for m := range micros {
			if !w.ok("StepBegin", w.ddp.StepBegin(m == micros-1)) {
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
		if w.synchronize() {
			w.holds("head", w.ddp.Grad(w.params[6]), exactly(4))
		}
	})
}

func TestMisuseOfJoin(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *worker) error // on rank 1, while rank 0 has data
		want string
	}{
		{"within a window", func(w *worker) error {
			w.ddp.StepBegin(false)
			_, err := w.ddp.Join(w.ctx, true)
			return err
		}, "Join within an accumulation window"},
		{"back again", func(w *worker) error {
			w.ddp.Join(w.ctx, false)
			w.ddp.StepBegin(true)
			w.ddp.Finish(w.ctx)
			_, err := w.ddp.Join(w.ctx, true)
			return err
		}, "Join(true) after Join(false)"},
		{"gradients of no data", func(w *worker) error {
			w.ddp.Join(w.ctx, false)
			w.ddp.StepBegin(true)
			w.give(w.params[0], constant(1))
			return w.ddp.Finish(w.ctx)
		}, "Get of embed after Join(false)"},
		{"all out, and a step", func(w *worker) error {
			w.ddp.Join(w.ctx, false)
			w.ddp.StepBegin(true)
			w.ddp.Finish(w.ctx)
			w.ddp.Join(w.ctx, false) // rank 0 has none either: an epoch is over
			w.ddp.StepBegin(true)
			return w.ddp.Finish(w.ctx)
		}, "no gradient for embed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks(t, 2, seven, func(w *worker) {
				if !w.start(Options{PlanOptions: small}) {
					return
				}
				if w.rank == 1 {
					w.wants(c.do(w), c.want, agree.Who(w.group, 1))
					return
				}
				var err error
				for round := 0; err == nil && round < 3; round++ {
					if _, err = w.ddp.Join(w.ctx, round == 0); err == nil {
						err = w.ddp.StepBegin(true)
					}
					for _, p := range w.params {
						if round == 0 && !p.Frozen {
							w.give(p, constant(1))
						}
					}
					if err == nil {
						err = errors.Join(w.ddp.Finish(w.ctx), w.compute.Synchronize(w.ctx))
					}
				}
				if err == nil {
					w.t.Error("rank 0 saw no error")
				}
			})
		})
	}
}

// A rank that stops without Join, or is in another call, does not leave the
// others hanging: they fail by the group's deadline and name it.
func TestLeavingWithoutJoinIsNoHang(t *testing.T) {
	for name, leave := range map[string]func(w *worker){
		"in no call": func(w *worker) { <-w.ctx.Done() },
		"in a step": func(w *worker) {
			w.ddp.StepBegin(true)
			for _, p := range w.params {
				if !p.Frozen {
					w.give(p, constant(1))
				}
			}
			w.ddp.Finish(w.ctx)
			w.compute.Synchronize(w.ctx)
		},
		"closed groups": func(w *worker) { w.group.(*comm.Group).Close() },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			groups, err := comm.Local(3, comm.Options{Timeout: 4 * time.Second, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			list := make([]Group, len(groups))
			for r, g := range groups {
				list[r] = g
			}
			failed, cancel := context.WithCancel(t.Context()) // lets rank 1 go
			defer cancel()
			run(t, list, seven, func(w *worker) {
				if !w.start(Options{PlanOptions: small}) {
					return
				}
				w.meet()
				if w.rank == 1 {
					w.ctx = failed
					leave(w)
					return
				}
				_, err := w.ddp.Join(w.ctx, true)
				cancel()
				if err == nil || !strings.Contains(err.Error(), "rank 1") {
					t.Errorf("rank %d: got %v, want an error that names rank 1", w.rank, err)
				}
			})
		})
	}
}
