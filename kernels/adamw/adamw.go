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

// Slot is one parameter: everything of W's shape.
type Slot struct {
	W tensor.Tensor // the weight that the model computes with, f32 or bf16
	// Master is the weight in f32, whose rounded copy W becomes. None where W is
	// f32 itself.
	Master tensor.Tensor
	M, V   tensor.Tensor // the moments, f32
	G      tensor.Tensor // the gradient, f32 or bf16
	Decay  bool          // whether Hyper.WeightDecay applies
}

// corrections are the denominators of the two moments.
func (h Hyper) corrections() (c1, c2 float64) {
	return 1 - math.Pow(h.Beta1, float64(h.Step)), 1 - math.Pow(h.Beta2, float64(h.Step))
}

// check refuses a slot whose tensors do not fit each other, and returns their size.
func (t Slot) check(op string) int {
	if t.Master.None() {
		check.Is(op, "w", t.W, dtype.F32, t.W.Shape...)
	} else {
		check.Is(op, "w", t.W, dtype.BF16, t.W.Shape...)
		check.Is(op, "master", t.Master, dtype.F32, t.W.Shape...)
	}
	check.Is(op, "m", t.M, dtype.F32, t.W.Shape...)
	check.Is(op, "v", t.V, dtype.F32, t.W.Shape...)
	check.Grad(op, "g", t.G, dtype.BF16, t.W.Shape...)
	return t.W.Numel()
}

func (h Hyper) check(op string) {
	if h.Step < 1 {
		check.Fail(op, "step %d: steps count from 1", h.Step)
	}
	if !h.Scale.None() {
		check.Is(op, "scale", h.Scale, dtype.F64, 1)
	}
}

// clipDims checks the three scalars, f64[1].
func clipDims(op string, coef, norm2, loss tensor.Tensor) {
	check.Is(op, "coef", coef, dtype.F64, 1)
	check.Is(op, "norm2", norm2, dtype.F64, 1)
	check.Is(op, "loss", loss, dtype.F64, 1)
}

// Coefficient is what gradients whose squares sum to norm2 are multiplied by so
// that their norm is at most limit (0: no limit). It is NaN, which skips the step,
// where norm2 or the loss is not a finite number. The 1e-6 is PyTorch's.
func Coefficient(norm2, loss, limit float64) float64 {
	switch {
	case math.IsNaN(norm2+loss) || math.IsInf(norm2+loss, 0):
		return math.NaN()
	case limit == 0:
		return 1
	}
	return min(1, limit/(math.Sqrt(norm2)+1e-6))
}
