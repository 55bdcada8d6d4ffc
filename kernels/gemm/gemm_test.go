package gemm

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// BenchmarkGemm is every backend on the shapes of a small transformer, in
// GFLOP/s. Compare within one run: the machine's speed is part of each number.
func BenchmarkGemm(b *testing.B) {
	shapes := []struct {
		name    string
		ta, tb  bool
		m, n, k int
	}{
		{"forward", false, true, 2048, 352, 128},
		{"backwardX", false, false, 2048, 128, 352},
		{"backwardW", true, false, 352, 128, 2048},
		{"square", false, true, 1024, 1024, 1024},
		{"scores", false, false, 64, 256, 32},
		{"values", false, false, 64, 32, 256},
		{"dvalues", true, false, 256, 32, 64},
		{"decode", false, true, 1, 4096, 1024},
	}
	r := kerntest.Rand(1)
	for _, s := range shapes {
		x, y := kerntest.Normal(r, 1, s.m*s.k).F32(), kerntest.Normal(r, 1, s.k*s.n).F32()
		z := make([]float32, s.m*s.n)
		lda, ldb := s.k, s.n
		if s.ta {
			lda = s.m
		}
		if s.tb {
			ldb = s.k
		}
		for _, mul := range every() {
			b.Run(s.name+"/"+mul.Name(), func(b *testing.B) {
				for b.Loop() {
					mul.Gemm(s.ta, s.tb, s.m, s.n, s.k, x, lda, y, ldb, false, z, s.n)
				}
				b.ReportMetric(2*float64(s.m*s.n*s.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// every is all backends, the own one for every instruction set that runs here.
func every() []Backend {
	list := []Backend{gonum{}}
	for _, k := range kernels() {
		list = append(list, newOwn(k))
	}
	if o, err := openOpenBLAS(); err == nil {
		list = append(list, o)
	}
	return list
}

// Every backend, transposition, kind of edge, and stride wider than the rows;
// what lies between the rows of c stays.
func TestGemmAgainstNaive(t *testing.T) {
	sizes := []int{1, 2, 4, 5, 8, 11, 12, 13, 16, 31, 32, 33, 63, 65, 97}
	r := kerntest.Rand(7)
	for _, mul := range every() {
		t.Run(mul.Name(), func(t *testing.T) {
			for trial := range 160 {
				pick := func() int { return sizes[r.IntN(len(sizes))] }
				m, n, k := pick(), pick(), pick()
				switch trial {
				case 0:
					m, n, k = 100, 530, 260 // past every block size
				case 1:
					m, n, k = 3, 530, 260
				case 2:
					k = 0
				}
				ta, tb, add := trial&1 != 0, trial&2 != 0, trial&4 != 0
				check(t, mul, ta, tb, m, n, k, add)
			}
		})
	}
}

// An element's bits do not depend on which rows and columns are computed with it,
// beyond FewRows: this is what lets callers split work over any number of threads.
func TestGemmPartsHaveTheBitsOfTheWhole(t *testing.T) {
	const m, n, k = 110, 530, 270
	r := kerntest.Rand(9)
	for _, mul := range every() {
		if strings.HasPrefix(mul.Name(), "openblas") {
			continue // makes no such promise
		}
		for trial := range 8 {
			ta, tb, add := trial&1 != 0, trial&2 != 0, trial&4 != 0
			a, b := kerntest.Normal(r, 1, m*k).F32(), kerntest.Normal(r, 1, k*n).F32()
			whole := kerntest.Normal(r, 1, m, n)
			parts := kerntest.Clone(whole)
			lda, ldb := k, n
			if ta {
				lda = m
			}
			if tb {
				ldb = k
			}
			mul.Gemm(ta, tb, m, n, k, a, lda, b, ldb, add, whole.F32(), n)
			row, col := FewRows+1+r.IntN(m-2*FewRows-1), 1+r.IntN(n-1)
			for _, p := range [][4]int{{0, row, 0, col}, {0, row, col, n}, {row, m, 0, col}, {row, m, col, n}} {
				pa, pb := a[p[0]*k:], b[p[2]:]
				if ta {
					pa = a[p[0]:]
				}
				if tb {
					pb = b[p[2]*k:]
				}
				mul.Gemm(ta, tb, p[1]-p[0], p[3]-p[2], k, pa, lda, pb, ldb, add, parts.F32()[p[0]*n+p[2]:], n)
			}
			kerntest.Equal(t, fmt.Sprint(mul.Name(), ta, tb, add, row, col), whole, parts)
		}
	}
}

// Many goroutines may multiply at once.
func TestGemmConcurrently(t *testing.T) {
	const m, n, k = 40, 70, 300
	r := kerntest.Rand(10)
	a, b := kerntest.Normal(r, 1, m*k).F32(), kerntest.Normal(r, 1, k*n).F32()
	for _, mul := range every() {
		want := kerntest.New(m, n)
		mul.Gemm(false, true, m, n, k, a, k, b, k, false, want.F32(), n)
		got := make([]tensor.Tensor, 8)
		var all sync.WaitGroup
		for i := range got {
			got[i] = kerntest.New(m, n)
			all.Go(func() {
				for range 20 {
					mul.Gemm(false, true, m, n, k, a, k, b, k, false, got[i].F32(), n)
				}
			})
		}
		all.Wait()
		for _, g := range got {
			kerntest.Equal(t, mul.Name(), want, g)
		}
	}
}

func TestGemmRefusesShortSlices(t *testing.T) {
	x := make([]float32, 100)
	for _, mul := range every() {
		for _, bad := range []func(){
			func() { mul.Gemm(false, false, 10, 10, 10, x[:99], 10, x, 10, false, x, 10) },
			func() { mul.Gemm(false, false, 10, 10, 10, x, 10, x[:99], 10, false, x, 10) },
			func() { mul.Gemm(true, true, 10, 10, 10, x, 10, x, 10, false, x[:99], 10) },
			func() { mul.Gemm(false, true, 10, 10, 10, x, 9, x, 10, false, x, 10) },
		} {
			kerntest.Panics(t, bad)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, name := range Names() {
		if b, why, err := Choose(name); err != nil || !strings.HasPrefix(b.Name(), name) || why == "" {
			t.Errorf("%s: %v, %q, %v", name, b, why, err)
		}
	}
	auto, _, err := Choose("auto")
	if err != nil || !strings.HasPrefix(auto.Name(), Names()[0]) {
		t.Errorf("auto is %v, %v; the fastest of %v was due", auto, err, Names())
	}
	if _, _, err := Choose("fast"); err == nil {
		t.Error("an unknown backend was accepted")
	}
}

func check(t *testing.T, mul Backend, ta, tb bool, m, n, k int, add bool) {
	t.Helper()
	r := kerntest.Rand(uint64(m*n + k))
	store := func(trans bool, rows, cols int) (x []float32, ld int, at func(i, j int) float64) {
		if trans {
			rows, cols = cols, rows
		}
		ld = max(cols, 1) + r.IntN(3)
		x = kerntest.Normal(r, 1, max(rows, 1)*ld).F32()
		return x, ld, func(i, j int) float64 {
			if trans {
				i, j = j, i
			}
			return float64(x[i*ld+j])
		}
	}
	a, lda, aAt := store(ta, m, k)
	b, ldb, bAt := store(tb, k, n)
	c, ldc, cAt := store(false, m, n)
	want := make([]float64, len(c))
	for i, v := range c {
		want[i] = float64(v)
	}
	for i := range m {
		for j := range n {
			sum := 0.0
			if add {
				sum = cAt(i, j)
			}
			for l := range k {
				sum += aAt(i, l) * bAt(l, j)
			}
			want[i*ldc+j] = sum
		}
	}
	mul.Gemm(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc)
	kerntest.Near(t, fmt.Sprint(ta, tb, m, n, k, add), kerntest.Of(c, len(c)), want, 3e-6)
}
