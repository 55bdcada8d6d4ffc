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

// dims checks y[N,C], table[V,C] of y's type, for a gradient (grad) of that type or
// f32, and ids[N] i32.
func dims(op, yArg, tableArg string, y, table, ids tensor.Tensor, grad bool) (n, v, c int) {
	ys, ts := check.Rank(op, yArg, y, 2), check.Rank(op, tableArg, table, 2)
	n, v, c = ys[0], ts[0], ys[1]
	tableIs(grad)(op, tableArg, table, y.DType, v, c)
	check.Is(op, "ids", ids, dtype.I32, n)
	return n, v, c
}

// positionDims checks y[B,T,C], and table[P,C] as dims does, with positions pos to
// pos+T inside the table.
func positionDims(op, yArg, tableArg string, y, table tensor.Tensor, pos int, grad bool) (b, t, p, c int) {
	ys, ts := check.Rank(op, yArg, y, 3), check.Rank(op, tableArg, table, 2)
	b, t, p, c = ys[0], ys[1], ts[0], ys[2]
	tableIs(grad)(op, tableArg, table, y.DType, p, c)
	if pos < 0 || pos+t > p {
		check.Fail(op, "positions %d to %d of %s %v are outside %s %v", pos, pos+t, yArg, y, tableArg, table)
	}
	return b, t, p, c
}

func tableIs(grad bool) func(op, arg string, t tensor.Tensor, dt dtype.DType, shape ...int) {
	if grad {
		return check.Grad
	}
	return check.Is
}

// outside is the error for an id that the table does not hold.
func outside(row int, id int32, v int) error {
	return fmt.Errorf("id %d of row %d is outside the table of %d entries: the tokenizer does not belong to this model", id, row, v)
}
