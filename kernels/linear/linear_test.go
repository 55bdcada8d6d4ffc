package linear

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int, backend string) (CPU, device.Stream) {
	mul, _, err := gemm.Choose(backend)
	if err != nil {
		t.Fatal(err)
	}
	return NewCPU(kerntest.Pool(t, threads), mul), kerntest.Stream(t)
}

// naive is the map in f64; b may be nil.
func naive(n, i, o int, x, w, b []float64) []float64 {
	y := make([]float64, n*o)
	for r := range n {
		for c := range o {
			y[r*o+c] = kerntest.Dot(x[r*i:(r+1)*i], w[c*i:(c+1)*i])
			if b != nil {
				y[r*o+c] += b[c]
			}
		}
	}
	return y
}

type problem struct {
	n, i, o     int
	x, w, b, dy tensor.Tensor
}

func newProblem(n, i, o int) problem {
	r := kerntest.Rand(uint64(n*1000003 + i*1009 + o))
	return problem{n, i, o, kerntest.Normal(r, 1, n, i), kerntest.Normal(r, 1, o, i),
		kerntest.Normal(r, 1, o), kerntest.Normal(r, 1, n, o)}
}

// results are all outputs: overwritten, and added to a tensor of ones.
type results struct{ y, plain, plus, both, dx, dw, db, dxAdd, dwAdd, dbAdd tensor.Tensor }

func (p problem) run(t testing.TB, c CPU, s device.Stream) results {
	ones := func(shape ...int) tensor.Tensor {
		x := kerntest.New(shape...)
		for i := range x.F32() {
			x.F32()[i] = 1
		}
		return x
	}
	r := results{kerntest.New(p.n, p.o), kerntest.New(p.n, p.o), kerntest.New(p.n, p.o), kerntest.Clone(p.dy), kerntest.New(p.n, p.i), kerntest.New(p.o, p.i),
		kerntest.New(p.o), ones(p.n, p.i), ones(p.o, p.i), ones(p.o)}
	none := tensor.Tensor{}
	c.Linear(s, r.y, p.x, p.w, p.b, none)
	c.Linear(s, r.plain, p.x, p.w, none, none)
	c.Linear(s, r.plus, p.x, p.w, none, p.dy)
	c.Linear(s, r.both, p.x, p.w, p.b, r.both) // in place
	c.LinearBackwardX(s, r.dx, p.dy, p.w, false)
	c.LinearBackwardW(s, r.dw, p.dy, p.x, false)
	c.BiasBackward(s, r.db, p.dy, false)
	c.LinearBackwardX(s, r.dxAdd, p.dy, p.w, true)
	c.LinearBackwardW(s, r.dwAdd, p.dy, p.x, true)
	c.BiasBackward(s, r.dbAdd, p.dy, true)
	kerntest.Wait(t, s)
	return r
}

var sizes = [][3]int{{1, 1, 1}, {1, 7, 5}, {3, 1, 2}, {2, 64, 63}, {5, 33, 65}, {63, 16, 17}, {64, 64, 64},
	{65, 128, 96}, {130, 31, 257}, {257, 300, 33}, {1, 600, 70}, {9, 5, 1031}, {33, 20, 5}, {67, 300, 8}, {4, 96, 96}, {0, 3, 4}}

func TestLinearAgainstNaive(t *testing.T) {
	for _, backend := range gemm.Names() {
		for _, size := range sizes {
			t.Run(fmt.Sprint(backend, size), func(t *testing.T) {
				p := newProblem(size[0], size[1], size[2])
				c, s := newCPU(t, 2, backend)
				r := p.run(t, c, s)
				x, w, b, dy := kerntest.F64(p.x), kerntest.F64(p.w), kerntest.F64(p.b), kerntest.F64(p.dy)
				dx, dw, db := make([]float64, p.n*p.i), make([]float64, p.o*p.i), make([]float64, p.o)
				for n := range p.n {
					for o := range p.o {
						g := dy[n*p.o+o]
						db[o] += g
						for i := range p.i {
							dx[n*p.i+i] += g * w[o*p.i+i]
							dw[o*p.i+i] += g * x[n*p.i+i]
						}
					}
				}
				plusOne := func(v []float64) []float64 {
					out := make([]float64, len(v))
					for i := range v {
						out[i] = v[i] + 1
					}
					return out
				}
				// Sums of up to 1031 products: sqrt(1031)*6e-8, with room for the largest of many.
				const tol = 3e-6
				kerntest.Near(t, "y", r.y, naive(p.n, p.i, p.o, x, w, b), tol)
				kerntest.Near(t, "y without bias", r.plain, naive(p.n, p.i, p.o, x, w, nil), tol)
				kerntest.Near(t, "y plus r", r.plus, sum(naive(p.n, p.i, p.o, x, w, nil), dy), tol)
				kerntest.Near(t, "y with bias plus itself", r.both, sum(naive(p.n, p.i, p.o, x, w, b), dy), tol)
				kerntest.Near(t, "dx", r.dx, dx, tol)
				kerntest.Near(t, "dw", r.dw, dw, tol)
				kerntest.Near(t, "db", r.db, db, 2e-7) // summed in f64
				kerntest.Near(t, "dx added", r.dxAdd, plusOne(dx), tol)
				kerntest.Near(t, "dw added", r.dwAdd, plusOne(dw), tol)
				kerntest.Near(t, "db added", r.dbAdd, plusOne(db), 2e-7)
			})
		}
	}
}

func sum(a, b []float64) []float64 {
	for i := range a {
		a[i] += b[i]
	}
	return a
}

func TestLinearAgainstDifferences(t *testing.T) {
	p := newProblem(4, 3, 5)
	c, s := newCPU(t, 1, "gonum")
	r := p.run(t, c, s)
	x, w, b, dy := kerntest.F64(p.x), kerntest.F64(p.w), kerntest.F64(p.b), kerntest.F64(p.dy)
	loss := func() float64 { return kerntest.Dot(naive(p.n, p.i, p.o, x, w, b), dy) }
	kerntest.Near(t, "dx", r.dx, kerntest.Gradient(x, loss), 1e-6)
	kerntest.Near(t, "dw", r.dw, kerntest.Gradient(w, loss), 1e-6)
	kerntest.Near(t, "db", r.db, kerntest.Gradient(b, loss), 1e-6)
}

func TestLinearBitsDoNotDependOnThreads(t *testing.T) {
	for _, backend := range gemm.Names() {
		if backend == "openblas" {
			continue // promises it for equal thread counts only
		}
		for _, size := range sizes {
			p := newProblem(size[0], size[1], size[2])
			var first results
			for i, threads := range kerntest.Threads {
				c, s := newCPU(t, threads, backend)
				r := p.run(t, c, s)
				if i == 0 {
					first = r
				}
				what := fmt.Sprint(backend, size, threads, " threads: ")
				kerntest.Equal(t, what+"y", first.y, r.y)
				kerntest.Equal(t, what+"dx", first.dx, r.dx)
				kerntest.Equal(t, what+"dw", first.dwAdd, r.dwAdd)
				kerntest.Equal(t, what+"db", first.db, r.db)
			}
		}
	}
}

func TestLinearRepeatsItsBits(t *testing.T) {
	p := newProblem(130, 96, 200)
	for _, backend := range gemm.Names() {
		c, s := newCPU(t, 2, backend)
		first, again := p.run(t, c, s), p.run(t, c, s)
		kerntest.Equal(t, backend+" y", first.y, again.y)
		kerntest.Equal(t, backend+" dx", first.dx, again.dx)
		kerntest.Equal(t, backend+" dw", first.dw, again.dw)
	}
}

func TestLinearPassesNaNOn(t *testing.T) {
	for _, backend := range gemm.Names() {
		p := newProblem(40, 20, 40)
		p.x.F32()[5*20+3] = float32(math.NaN())
		c, s := newCPU(t, 1, backend)
		r := p.run(t, c, s)
		for i, v := range r.y.F32() {
			if bad := i/p.o == 5; (v != v) != bad {
				t.Fatalf("%s: NaN in x row 5: y[%d,%d] = %v", backend, i/p.o, i%p.o, v)
			}
		}
		for i, v := range r.dw.F32() {
			if bad := i%p.i == 3; (v != v) != bad {
				t.Fatalf("%s: NaN in x column 3: dw[%d,%d] = %v", backend, i/p.i, i%p.i, v)
			}
		}
	}
}

func TestLinearRefusesShapes(t *testing.T) {
	c, s := newCPU(t, 1, "gonum")
	n, none := kerntest.New, tensor.Tensor{}
	kerntest.Panics(t, func() { c.Linear(s, n(2, 4), n(2, 3), n(4, 5), none, none) }, "linear", "w is f32[4 5]", "f32[4 3]")
	kerntest.Panics(t, func() { c.Linear(s, n(2, 5), n(2, 3), n(4, 3), none, none) }, "y is f32[2 5]")
	kerntest.Panics(t, func() { c.Linear(s, n(2, 4), n(2, 3), n(4, 3), n(3), none) }, "b is f32[3]")
	kerntest.Panics(t, func() { c.Linear(s, n(2, 4), n(2, 3), n(4, 3), none, n(2, 3)) }, "r is f32[2 3]")
	kerntest.Panics(t, func() { c.Linear(s, n(2, 4), none, n(4, 3), none, none) }, "x is none")
	kerntest.Panics(t, func() { c.LinearBackwardX(s, n(2, 3), n(2, 4), n(3, 4), false) }, "linear backward x", "w is")
	kerntest.Panics(t, func() { c.LinearBackwardW(s, n(3, 4), n(2, 4), n(2, 3), false) }, "linear backward w", "dw is")
	kerntest.Panics(t, func() { c.BiasBackward(s, n(3), n(2, 4), false) }, "bias backward", "db is")
}
