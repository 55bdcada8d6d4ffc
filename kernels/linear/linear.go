// Package linear is the affine map y = x·wᵀ + b and its gradients.
//
// Letters: N rows, I inputs, O outputs. Weights are stored [O, I].
package linear

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// forwardDims checks y[N,O], x[N,I], w[O,I], b[O] and r[N,O], all of x's type;
// b and r may be none.
func forwardDims(op string, y, x, w, b, r tensor.Tensor) (n, i, o int) {
	n, i, o = dims(op, "y", "x", y, x, w)
	if !b.None() {
		check.Is(op, "b", b, y.DType, o)
	}
	if !r.None() {
		check.Like(op, "r", r, "y", y)
	}
	return n, i, o
}

// dims checks the three matrices of a product, named as in the forward pass:
// y[N,O], x[N,I], w[O,I], all of x's type.
func dims(op, yArg, xArg string, y, x, w tensor.Tensor) (n, i, o int) {
	xs, ws := check.Rank(op, xArg, x, 2), check.Rank(op, "w", w, 2)
	n, i, o = xs[0], xs[1], ws[0]
	check.Is(op, "w", w, x.DType, o, i)
	check.Is(op, yArg, y, x.DType, n, o)
	return n, i, o
}

// gradDims checks dy[N,O] and x[N,I] of one type, and dw[O,I] of that type or f32.
func gradDims(op string, dw, dy, x tensor.Tensor) (n, i, o int) {
	xs, dys := check.Rank(op, "x", x, 2), check.Rank(op, "dy", dy, 2)
	n, i, o = xs[0], xs[1], dys[1]
	check.Is(op, "dy", dy, x.DType, n, o)
	check.Grad(op, "dw", dw, x.DType, o, i)
	return n, i, o
}

// biasDims checks dy[N,O] and db[O] of dy's type or f32.
func biasDims(op string, db, dy tensor.Tensor) (n, o int) {
	s := check.Rank(op, "dy", dy, 2)
	check.Grad(op, "db", db, dy.DType, s[1])
	return s[0], s[1]
}
