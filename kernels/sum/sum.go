// Package sum is the sums over whole tensors: of losses, and of the squares that
// gradient clipping needs.
package sum

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// dims checks out[1] f64 and returns the size of x.
func dims(op string, out, x tensor.Tensor) int {
	check.Is(op, "out", out, dtype.F64, 1)
	if x.None() {
		check.Fail(op, "x is none")
	}
	return x.Numel()
}
