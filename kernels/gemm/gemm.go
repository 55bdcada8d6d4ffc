// Package gemm multiplies f32 matrices on the CPU. It is what linear layers and
// attention stand on, and it has three backends of very different speed.
package gemm

import "fmt"

// Backend is one implementation of the matrix product. It computes on the
// calling goroutine alone; callers split work by rows or columns of c. Calls may
// be concurrent. The same call gives the same bits every time.
type Backend interface {
	// Name is "own", "openblas" or "gonum", with the variant that is in use.
	Name() string
	// Gemm writes c = op(a)·op(b), or adds it to c with add. All matrices are
	// row-major; c is [m,n] with rows ldc elements apart, op(a) is [m,k],
	// op(b) is [k,n]. With ta, a is stored [k,m]; with tb, b is stored [n,k].
	// c must not overlap a or b.
	Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, c []float32, ldc int)
}

// Choose returns the backend called name: "own", "openblas" or "gonum", or for
// "auto" the best that this machine has. why says how it was chosen, for logs.
func Choose(name string) (b Backend, why string, err error) {
	switch name {
	case "gonum":
		return gonum{}, "asked for", nil
	case "auto", "":
		return gonum{}, "no faster backend", nil
	}
	return nil, "", fmt.Errorf("gemm: no backend %q: want auto, own, openblas or gonum", name)
}

// clearRows zeroes c[m,n]: the product over an empty k.
func clearRows(m, n int, c []float32, ldc int) {
	for i := range m {
		clear(c[i*ldc : i*ldc+n])
	}
}

// Names lists the backends that work on this machine, the best first.
func Names() []string {
	names := []string{}
	for _, n := range []string{"own", "openblas", "gonum"} {
		if _, _, err := Choose(n); err == nil {
			names = append(names, n)
		}
	}
	return names
}
