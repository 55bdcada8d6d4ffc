package zero

import (
	"math"
	"testing"
)

// A step is the sum over its samples, however many of them a rank has, and a
// micro-step, and however many micro-steps there are; the next step begins anew.
func TestUnevenMicroStepsAddUp(t *testing.T) {
	steps := [][2][]int{ // by step and rank, the ends of the micro-steps' samples
		{{2, 12}, {40, samples}},         // few and many
		{{1, 2, 3, 4}, {44, 45, 46, 48}}, // accumulated
		{{24, 24, 24}, {24, 25, samples}},
		{{47}, {samples}}, // one alone
	}
	_, norms := reference(t.Context(), toyF32(), len(steps))
	for stage := 1; stage <= 3; stage++ {
		ranks(t, 2, toyF32, func(w *worker) {
			if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, Tied: toyTied}}) {
				return
			}
			r := w.train(1)
			if !r.load() {
				return
			}
			for _, ends := range steps {
				from := 0
				if w.rank == 1 {
					from = ends[0][len(ends[0])-1]
				}
				ok := r.enqueueMicro(func() error {
					for i, to := range ends[w.rank] {
						if err := w.zero.StepBegin(i == len(ends[w.rank])-1); err != nil {
							return err
						}
						r.model.micro(w.zero, from, to)
						if err := w.zero.Finish(w.ctx); err != nil {
							return err
						}
						from = to
					}
					return nil
				})
				if !ok || !w.ok("Gather", w.zero.Gather()) {
					return
				}
			}
			if !w.synchronize() {
				return
			}
			for i, n := range r.norms {
				if !(math.Abs(n-norms[i]) <= 1e-5*norms[i]) {
					w.t.Errorf("stage %d, rank %d: the norm of step %d is %v, of one rank with all samples %v", stage, w.rank, i, n, norms[i])
				}
			}
		})
	}
}
