// Package adamw is the optimizer's step.
package adamw

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Hyper is what one step of AdamW is made with.
type Hyper struct {
	LR           float64
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64 // decoupled: w loses LR*WeightDecay*w
	// Step counts from 1; the moments are corrected by 1-Beta^Step.
	Step int
	// Scale multiplies the gradient: f64[1], read when the work runs, such as
	// the coefficient of clipping. Optional. Where it is NaN or infinite the step is
	// skipped and w, m and v stay as they are: the whole step, on every
	// rank alike, because every rank clips by the same norm.
	Scale tensor.Tensor
}

// corrections are the denominators of the two moments.
func (h Hyper) corrections() (c1, c2 float64) {
	return 1 - math.Pow(h.Beta1, float64(h.Step)), 1 - math.Pow(h.Beta2, float64(h.Step))
}

// dims checks w, m, v, g alike and f32, and the scale; it returns their size.
func dims(op string, w, m, v, g tensor.Tensor, h Hyper) int {
	check.Is(op, "w", w, dtype.F32, w.Shape...)
	check.Like(op, "m", m, "w", w)
	check.Like(op, "v", v, "w", w)
	check.Like(op, "g", g, "w", w)
	if h.Step < 1 {
		check.Fail(op, "step %d: steps count from 1", h.Step)
	}
	if !h.Scale.None() {
		check.Is(op, "scale", h.Scale, dtype.F64, 1)
	}
	return w.Numel()
}
