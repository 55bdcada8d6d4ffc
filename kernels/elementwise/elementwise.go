// Package elementwise is copies between types, and zeroing.
package elementwise

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// copyDims checks that x has y's shape and that its type is y's or can be
// converted: f32, bf16 and f16 can, among each other.
func copyDims(op string, y, x tensor.Tensor) int {
	if x.None() || y.None() {
		check.Fail(op, "y is %v, x is %v", y, x)
	}
	check.Is(op, "x", x, x.DType, y.Shape...)
	if x.DType != y.DType && !(convertible(x.DType) && convertible(y.DType)) {
		check.Fail(op, "cannot convert x %v to y %v", x, y)
	}
	return y.Numel()
}

func convertible(d dtype.DType) bool { return d == dtype.F32 || d == dtype.BF16 || d == dtype.F16 }
