package norm

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// headed is the shape of queries, keys and values side by side, [N,E,D]: of E heads
// the first are queries, and the rest keys and as many values.
type headed struct{ n, all, queries, keys, d int }

// normed is how many heads of a row are normalised.
func (h headed) normed() int { return h.queries + h.keys }

// qkDims checks that x is [N,H+2K,D] with H = heads, that other is like it, that w are
// [D] of its type and grads [D] of that type or f32, or none.
func qkDims(op string, x, other arg, heads int, w, grads []arg) headed {
	shape := check.Rank(op, x.name, x.t, 3)
	h := headed{n: shape[0], all: shape[1], queries: heads, keys: (shape[1] - heads) / 2, d: shape[2]}
	if heads < 1 || h.keys < 1 || h.queries+2*h.keys != h.all || h.d == 0 {
		check.Fail(op, "%s is %v: these are not %d heads of queries, and keys and values of as many heads each", x.name, x.t, heads)
	}
	check.Like(op, other.name, other.t, x.name, x.t)
	for _, a := range w {
		check.Is(op, a.name, a.t, x.t.DType, h.d)
	}
	for _, a := range grads {
		if !a.t.None() {
			check.Grad(op, a.name, a.t, x.t.DType, h.d)
		}
	}
	return h
}

// fresh refuses a y that is x: the backward pass needs x.
func fresh(op string, y, x tensor.Tensor) {
	if sameMemory(y, x) {
		check.Fail(op, "y is x, which the backward pass reads")
	}
}
