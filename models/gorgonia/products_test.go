package gorgonia_test

import (
	"testing"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/models/gorgonia"
)

// counting is a backend that counts its calls.
type counting struct {
	gemm.Backend
	calls int
}

func (c *counting) Gemm(ta, tb bool, m, n, k int, a []float32, lda int, b []float32, ldb int, add bool, out []float32, ldc int) {
	c.calls++
	c.Backend.Gemm(ta, tb, m, n, k, a, lda, b, ldb, add, out, ldc)
}

// A net's gradients, which take products of all kinds of transposed matrices, are the
// same by another backend and on several goroutines.
func TestProductsAreThoseOfTheBackend(t *testing.T) {
	run := func() *net[float32] {
		n := newNet[float32](24, nil)
		if err := n.feed(0, 0, 24); err != nil {
			t.Fatal(err)
		}
		vm := G.NewTapeMachine(n.graph)
		defer vm.Close()
		if err := vm.RunAll(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := gt.WhichBLAS()
	defer gt.Use(before)
	want := run()
	for _, threads := range []int{1, 3, 100} {
		b, _, err := gemm.Choose("auto")
		if err != nil {
			t.Fatal(err)
		}
		c := &counting{Backend: b}
		if threads > 1 { // which would count from several goroutines
			gorgonia.UseProducts(b, threads)
		} else {
			gorgonia.UseProducts(c, threads)
		}
		got := run()
		if products := 3*(len(widths)-1) - 1; threads == 1 && c.calls < products {
			t.Errorf("the backend was called %d times, want at least %d", c.calls, products)
		}
		for i, p := range want.params {
			if d := apart(gradOf[float32](t, got.params[i]), gradOf[float32](t, p)); !(d <= 1e-5) {
				t.Errorf("%d goroutines: the gradient of %s is %.2g apart", threads, p.Name(), d)
			}
		}
	}
}
