package gemm

import (
	"gonum.org/v1/gonum/blas"
	blasgonum "gonum.org/v1/gonum/blas/gonum"
)

// gonum is the backend for every machine. It multiplies block by block, each
// small enough that gonum stays on this goroutine: left alone, gonum would start
// goroutines by GOMAXPROCS and sum k in another order for small outputs, so that
// bits would depend on how callers split their work. It leaves out factors of a
// that are 0, so a NaN or infinity of b does not show behind them.
type gonum struct{}

const gonumBlock = 64 // gonum's own block size

func (gonum) Name() string { return "gonum" }

func (gonum) Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int) {
	if trivial(m, n, k, add, c, ldc) {
		return
	}
	if !add {
		clearRows(m, n, c, ldc)
	}
	at := func(x []float32, ld int, trans bool, row, col int) []float32 {
		if trans {
			row, col = col, row
		}
		return x[row*ld+col:]
	}

	fa, fb := transpose(ta), transpose(tb)
	for i := 0; i < m; i += gonumBlock {
		for j := 0; j < n; j += gonumBlock {
			for l := 0; l < k; l += gonumBlock {
				blasgonum.Implementation{}.Sgemm(fa, fb,
					min(gonumBlock, m-i), min(gonumBlock, n-j), min(gonumBlock, k-l),
					1, at(a, lda, ta, i, l), lda, at(b, ldb, tb, l, j), ldb, 1, c[i*ldc+j:], ldc)
			}
		}
	}
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}
