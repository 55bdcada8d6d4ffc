package gorgonia

import (
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/kernels/gemm"
)

// UseProducts makes b the matrix product of all of Gorgonia's float32 graphs in this
// process, on threads goroutines each. Without it they are gonum's, on GOMAXPROCS. No
// graph may run meanwhile.
func UseProducts(b gemm.Backend, threads int) { gt.Use(products{mul: b, threads: threads}) }

// products is gonum's BLAS but for one operation.
type products struct {
	gonum.Implementation
	mul     gemm.Backend
	threads int
}

// Sgemm is of blas.Float32. Rows are split over the goroutines; the caller's is one.
func (p products) Sgemm(ta, tb blas.Transpose, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if alpha != 1 || beta != 0 && beta != 1 || m == 0 || n == 0 || k == 0 {
		p.Implementation.Sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
		return
	}
	transposed := ta != blas.NoTrans
	rows := func(from, to int) {
		first := from * lda
		if transposed {
			first = from
		}
		p.mul.Gemm(transposed, tb != blas.NoTrans, to-from, n, k, a[first:], lda, b, ldb, beta == 1, c[from*ldc:], ldc)
	}
	parts := max(1, min(p.threads, m/gemm.FewRows))
	var others sync.WaitGroup
	for i := 1; i < parts; i++ {
		others.Go(func() { rows(m*i/parts, m*(i+1)/parts) })
	}
	rows(0, m/parts)
	others.Wait()
}
