// Package gemm multiplies f32 matrices on the CPU. It is what linear layers and
// attention stand on, and it has three backends of very different speed.
package gemm

import (
	"errors"
	"fmt"
)

// Backend is one implementation of the matrix product. It computes on the
// calling goroutine alone; callers split work by rows or columns of c. Calls may
// be concurrent. The same call gives the same bits every time.
type Backend interface {
	// Name is "own", "openblas" or "gonum", and the variant in use.
	Name() string
	// Gemm writes c = op(a)·op(b), or adds it to c with add. All matrices are
	// row-major; c is [m,n] with rows ldc elements apart, op(a) is [m,k],
	// op(b) is [k,n]. With ta, a is stored [k,m]; with tb, b is stored [n,k].
	// c must not overlap a or b. It panics where a slice is too short.
	Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int)
}

const openblasFile = "libopenblas.so.0"

// Choose returns the backend called name: "own", "openblas" or "gonum", or for
// "auto" and "" the fastest that there is here: they stand in this order in
// BenchmarkGemm. why is the reason, for logs, where it is not the first of them.
func Choose(name string) (b Backend, why string, err error) {
	switch name {
	case "gonum":
		return gonum{}, "asked for", nil
	case "own":
		o, err := openOwn()
		return o, "asked for", err
	case "openblas":
		o, err := openOpenBLAS()
		return o, "asked for", err
	case "auto", "":
		own, ownErr := openOwn()
		if ownErr == nil {
			return own, "", nil
		}
		blas, blasErr := openOpenBLAS()
		if blasErr == nil {
			return blas, ownErr.Error(), nil
		}
		return gonum{}, errors.Join(ownErr, blasErr).Error(), nil
	}
	return nil, "", fmt.Errorf("gemm: no backend %q: want auto, own, openblas or gonum", name)
}

// Names lists the backends that work on this machine, in the order of auto.
func Names() []string {
	names := []string{}
	for _, n := range []string{"own", "openblas", "gonum"} {
		if _, _, err := Choose(n); err == nil {
			names = append(names, n)
		}
	}
	return names
}

// trivial does the products over an empty k, and those of no elements.
func trivial(m, n, k int, add bool, c []float32, ldc int) bool {
	if m > 0 && n > 0 && k > 0 {
		return false
	}
	if m > 0 && n > 0 && !add {
		clearRows(m, n, c, ldc)
	}
	return true
}

// clearRows zeroes c[m,n].
func clearRows(m, n int, c []float32, ldc int) {
	for i := range m {
		clear(c[i*ldc : i*ldc+n])
	}
}

// checkBounds panics where a matrix does not lie within its slice. m, n and k
// are at least 1. What runs behind it is not Go.
func checkBounds(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	inside("a", ta, m, k, len(a), lda)
	inside("b", tb, k, n, len(b), ldb)
	inside("c", false, m, n, len(c), ldc)
}

func inside(name string, trans bool, rows, cols, size, ld int) {
	if trans {
		rows, cols = cols, rows
	}
	if ld < cols || (rows-1)*ld+cols > size {
		panic(fmt.Sprintf("gemm: %s is [%d,%d] with rows %d apart and has %d elements", name, rows, cols, ld, size))
	}
}
