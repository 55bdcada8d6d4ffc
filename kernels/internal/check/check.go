// Package check is how operations refuse arguments. A shape or type that does
// not fit is a fault of the caller's program, so these functions panic at the
// call, naming the operation and what it got, before anything is enqueued.
package check

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Fail panics with the operation's name and the formatted reason.
func Fail(op, format string, args ...any) {
	panic("kernels: " + op + ": " + fmt.Sprintf(format, args...))
}

// Is panics unless t is of type dt and has exactly the given shape.
func Is(op, arg string, t tensor.Tensor, dt dtype.DType, shape ...int) {
	if t.DType != dt || !sameShape(t.Shape, shape) {
		Fail(op, "%s is %v, want %s%v", arg, t, dt, shape)
	}
}

// Rank panics unless t has n dimensions, none of them negative, and returns its shape.
func Rank(op, arg string, t tensor.Tensor, n int) []int {
	if t.None() || len(t.Shape) != n {
		Fail(op, "%s is %v, want %d dimensions", arg, t, n)
	}
	return t.Shape
}

// Like panics unless t has the type and the shape of ref.
func Like(op, arg string, t tensor.Tensor, refArg string, ref tensor.Tensor) {
	if ref.None() {
		Fail(op, "%s is none", refArg)
	}
	if t.DType != ref.DType || !sameShape(t.Shape, ref.Shape) {
		Fail(op, "%s is %v, want %v as %s", arg, t, ref, refArg)
	}
}

// Grad panics unless t, the gradient of a parameter of type dt, has the given
// shape and is of that type or f32, in which micro-steps add up.
func Grad(op, arg string, t tensor.Tensor, dt dtype.DType, shape ...int) {
	if t.DType == dtype.F32 {
		dt = dtype.F32
	}
	Is(op, arg, t, dt, shape...)
}

func sameShape(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
