// Package activation is the elementwise functions of feed-forward blocks.
//
// Letters: N rows, F channels.
package activation

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// alike checks that all the others have the type and shape of the first and
// returns their size.
func alike(op string, names []string, ts ...tensor.Tensor) int {
	for i, t := range ts[1:] {
		check.Like(op, names[i+1], t, names[0], ts[0])
	}
	return ts[0].Numel()
}

// gatedDims checks y[N,F] and x[N,2F] of y's type, whose left half is the gate.
func gatedDims(op, yArg, xArg string, y, x tensor.Tensor) (n, f int) {
	s := check.Rank(op, yArg, y, 2)
	check.Is(op, xArg, x, y.DType, s[0], 2*s[1])
	return s[0], s[1]
}
