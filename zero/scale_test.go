package zero

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// A loss scale is the embedder's: it scales the losses, and the coefficient of clipping
// takes the scale out again, behind the norm over all ranks. Where a scaled gradient
// overflows f16, all ranks see a norm that is not finite, skip the step alike and go on
// with half of the scale: to the very bits of a run that began with that. Without a
// scale f16 loses what is small.
func TestALossScaleIsTakenOutByTheOptimizer(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		t.Run(fmt.Sprint("stage=", stage), func(t *testing.T) {
			ranks(t, 3, func() []*param.Param { return toy(dtype.F16) }, func(w *worker) {
				var runs []scaledRun
				for scale := 0x1p21; len(runs) < 3; scale = runs[0].scale {
					if len(runs) == 2 {
						scale = 1
					}
					if !w.start(Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, ReduceDType: dtype.F32, Tied: toyTied}}) {
						return
					}
					run, ok := w.trainScaled(scale, 4)
					if !ok {
						return
					}
					runs = append(runs, run)
				}
				if runs[0].scale == 0x1p21 || runs[1].scale != runs[0].scale || runs[2].scale != 1 {
					w.t.Errorf("rank %d: scales end at %g, %g, %g", w.rank, runs[0].scale, runs[1].scale, runs[2].scale)
				}
				equal(w.t, fmt.Sprintf("rank %d, behind skipped steps", w.rank), runs[0].outcome, runs[1].outcome, 0)
				equal(w.t, fmt.Sprintf("rank %d, without a scale", w.rank), runs[2].outcome, runs[1].outcome, 2e-3)
			}, "hub", "gpu")
		})
	}
}

// scaledRun is the masters of a rank, the norms of the steps that were applied, and
// the scale at the end.
type scaledRun struct {
	outcome
	scale float64
}

// trainScaled makes a number of steps that are applied. The scale is halved behind each
// whose norm is not finite.
func (w *worker) trainScaled(scale float64, steps int) (run scaledRun, ok bool) {
	r := w.train(2)
	r.model.value = func(sample, e int, x, mean float64) float64 { return scale * gradient(sample, e, x, mean) }
	r.coef = func(squares float64) float64 { return clip(squares/(scale*scale)) / scale }
	if !r.load() {
		return run, false
	}
	squares := w.see(r.squares).F64()
	for len(run.norms) < steps {
		if !r.enqueue() || !w.ok("Gather", w.zero.Gather()) || !w.synchronize() {
			return run, false
		}
		if norm := math.Sqrt(squares[0]) / scale; norm < math.Inf(1) {
			run.norms = append(run.norms, norm)
		} else {
			r.applied--
			scale /= 2
		}
	}
	run.weights = map[string][]float32{}
	for _, p := range w.params {
		run.weights[p.Name] = make([]float32, p.Numel())
	}
	w.masters(run.weights)
	run.scale = scale
	return run, true
}
