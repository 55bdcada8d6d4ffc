// Package activation is the elementwise functions of feed-forward blocks.
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
