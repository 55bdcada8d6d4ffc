// Package linear is the affine map y = x·wᵀ + b and its gradients.
//
// Letters: N rows, I inputs, O outputs. Weights are stored [O, I].
package linear

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// dims checks the three matrices of a product, named as in the forward pass:
// y[N,O], x[N,I], w[O,I], all of x's type.
func dims(op, yArg, xArg, wArg string, y, x, w tensor.Tensor) (n, i, o int) {
	xs, ws := check.Rank(op, xArg, x, 2), check.Rank(op, wArg, w, 2)
	n, i, o = xs[0], xs[1], ws[0]
	check.Is(op, wArg, w, x.DType, o, i)
	check.Is(op, yArg, y, x.DType, n, o)
	return n, i, o
}

// biasDims checks y[N,O] and b[O] of y's type.
func biasDims(op, yArg, bArg string, y, b tensor.Tensor) (n, o int) {
	ys := check.Rank(op, yArg, y, 2)
	check.Is(op, bArg, b, y.DType, ys[1])
	return ys[0], ys[1]
}
