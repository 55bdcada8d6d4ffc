// Package lowrank lets one matrix product do the work of several narrow ones, those
// of low-rank adapters on layers that are one product themselves: it lays their
// factors out along the diagonal of one matrix, and takes the gradients from there.
//
// Letters: G factors of R columns, [n,R] each, M rows of them in all; O rows of the
// matrix, whose G*R columns are R of each factor.
package lowrank

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Most is how many factors a matrix may have.
const Most = 4

// dims checks the factors factors[M,R], one behind the other, against matrix[O,G*R],
// where factor g has the rows from blocks[g][0] to blocks[g][1].
func dims(op, factorsArg string, factors tensor.Tensor, matrixArg string, matrix tensor.Tensor, blocks [][2]int) (m, r, o int) {
	s := check.Rank(op, factorsArg, factors, 2)
	m, r, o = s[0], s[1], check.Rank(op, matrixArg, matrix, 2)[0]
	if len(blocks) < 1 || len(blocks) > Most {
		check.Fail(op, "%d factors, want 1 to %d", len(blocks), Most)
	}
	rows, last := 0, 0
	for _, b := range blocks {
		if b[0] < last || b[1] < b[0] || b[1] > o {
			check.Fail(op, "the factors' rows are %v, want ascending ranges of the %d", blocks, o)
		}
		rows, last = rows+b[1]-b[0], b[1]
	}
	if rows != m {
		check.Fail(op, "%s is %v, and the factors' rows %v are %d", factorsArg, factors, blocks, rows)
	}
	check.Is(op, matrixArg, matrix, matrix.DType, o, len(blocks)*r)
	return m, r, o
}
