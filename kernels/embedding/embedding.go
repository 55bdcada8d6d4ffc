// Package embedding is the table look-up and its gradient.
//
// Letters: N rows, V entries of the table, C channels.
package embedding

import (
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// dims checks y[N,C], table[V,C] of y's type and ids[N] i32.
func dims(op, yArg, tableArg string, y, table, ids tensor.Tensor) (n, v, c int) {
	ys, ts := check.Rank(op, yArg, y, 2), check.Rank(op, tableArg, table, 2)
	n, v, c = ys[0], ts[0], ys[1]
	check.Is(op, tableArg, table, y.DType, v, c)
	check.Is(op, "ids", ids, dtype.I32, n)
	return n, v, c
}

// outside is the error for an id that the table does not hold.
func outside(row int, id int32, v int) error {
	return fmt.Errorf("id %d of row %d is outside the table of %d entries: the tokenizer does not belong to this model", id, row, v)
}
