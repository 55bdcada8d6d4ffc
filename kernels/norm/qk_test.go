package norm

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// qkProblem is queries, keys and values, the weights and the gradient of y.
type qkProblem struct {
	headed
	x, wq, wk, dy tensor.Tensor
}

func newQK(n, queries, keys, d int) qkProblem {
	r := kerntest.Rand(uint64(n*1009 + queries*31 + d))
	h := headed{n: n, all: queries + 2*keys, queries: queries, keys: keys, d: d}
	return qkProblem{h, kerntest.Normal(r, 2, n, h.all, d), kerntest.Normal(r, 1, d), kerntest.Normal(r, 1, d), kerntest.Normal(r, 1, n, h.all, d)}
}

// qkTruth is the results in f64: each head is a row of one channel group.
type qkTruth struct{ y, dx, dwq, dwk []float64 }

func (p qkProblem) truth() qkTruth {
	return p.truthOf(kerntest.F64(p.x), kerntest.F64(p.wq), kerntest.F64(p.wk))
}

func (p qkProblem) truthOf(x, wq, wk []float64) qkTruth {
	dy := kerntest.F64(p.dy)
	t := qkTruth{dwq: make([]float64, p.d), dwk: make([]float64, p.d)}
	for i := range p.n * p.all {
		xr, dyr := x[i*p.d:(i+1)*p.d], dy[i*p.d:(i+1)*p.d]
		w, dw := wq, t.dwq
		switch e := i % p.all; {
		case e >= p.normed():
			t.y, t.dx = append(t.y, xr...), append(t.dx, dyr...)
			continue
		case e >= p.queries:
			w, dw = wk, t.dwk
		}
		y, mean, rstd := naive(p.d, xr, w, nil)
		dx, sum, _ := naiveBackward(p.d, false, dyr, xr, w, mean, rstd)
		t.y, t.dx = append(t.y, y...), append(t.dx, dx...)
		for j := range dw {
			dw[j] += sum[j]
		}
	}
	return t
}

type qkResults struct{ y, dx, dwq, dwk tensor.Tensor }

// run makes both passes; add adds to gradients that are start before.
func (p qkProblem) run(t testing.TB, threads int, addQ, addK bool, start float32) qkResults {
	c, s := newCPU(t, threads)
	r := qkResults{kerntest.New(p.n, p.all, p.d), kerntest.Clone(p.dy), kerntest.New(p.d), kerntest.New(p.d)}
	for i := range p.d {
		r.dwq.F32()[i], r.dwk.F32()[i] = start, start
	}
	c.QKNorm(s, r.y, p.x, p.wq, p.wk, p.queries, eps)
	c.QKNormBackward(s, r.dx, r.dwq, r.dwk, p.x, p.wq, p.wk, p.queries, eps, addQ, addK)
	kerntest.Wait(t, s)
	return r
}

// qkShapes are rows, heads of queries and of keys, and their size.
var qkShapes = [][4]int{{1, 1, 1, 1}, {1, 2, 1, 4}, {7, 3, 1, 6}, {5, 4, 4, 16}, {33, 6, 2, 65}, {18, 2, 1, 128}, {3, 16, 8, 128}, {2, 1, 1, 300}, {0, 2, 1, 8}}

func eachQK(t *testing.T, f func(t *testing.T, p qkProblem)) {
	for _, s := range qkShapes {
		t.Run(fmt.Sprint(s), func(t *testing.T) { f(t, newQK(s[0], s[1], s[2], s[3])) })
	}
}

func TestQKNormAgainstNaive(t *testing.T) {
	eachQK(t, func(t *testing.T, p qkProblem) {
		want, got := p.truth(), p.run(t, 1, false, false, 7)
		const tol = 2e-6 // sums are f64; what is left is a handful of f32 roundings an element
		kerntest.Near(t, "y", got.y, want.y, tol)
		if p.d > 1 { // with one channel the gradient is a difference of equal numbers
			kerntest.Near(t, "dx", got.dx, want.dx, tol)
		}
		kerntest.Near(t, "dwq", got.dwq, want.dwq, tol)
		kerntest.Near(t, "dwk", got.dwk, want.dwk, tol)
		// Each weight's gradient is added to by a flag of its own.
		added := p.run(t, 1, true, false, 1)
		kerntest.Equal(t, "dwk beside an added dwq", got.dwk, added.dwk)
		for i := range want.dwq {
			want.dwq[i]++
		}
		kerntest.Near(t, "dwq added", added.dwq, want.dwq, tol)
		added = p.run(t, 1, false, true, 1)
		kerntest.Equal(t, "dwq beside an added dwk", got.dwq, added.dwq)
		for i := range want.dwk {
			want.dwk[i]++
		}
		kerntest.Near(t, "dwk added", added.dwk, want.dwk, tol)
	})
}

func TestQKNormAgainstDifferences(t *testing.T) {
	p := newQK(3, 3, 1, 6)
	got := p.run(t, 1, false, false, 0)
	x, wq, wk := kerntest.F64(p.x), kerntest.F64(p.wq), kerntest.F64(p.wk)
	loss := func() float64 { return kerntest.Dot(p.truthOf(x, wq, wk).y, kerntest.F64(p.dy)) }
	kerntest.Near(t, "dx", got.dx, kerntest.Gradient(x, loss), 2e-6)
	kerntest.Near(t, "dwq", got.dwq, kerntest.Gradient(wq, loss), 2e-6)
	kerntest.Near(t, "dwk", got.dwk, kerntest.Gradient(wk, loss), 2e-6)
}

func TestQKNormBitsDoNotDependOnThreads(t *testing.T) {
	eachQK(t, func(t *testing.T, p qkProblem) {
		first := p.run(t, 1, true, true, 1)
		for _, threads := range kerntest.Threads[1:] {
			got := p.run(t, threads, true, true, 1)
			kerntest.Equal(t, "y", first.y, got.y)
			kerntest.Equal(t, "dx", first.dx, got.dx)
			kerntest.Equal(t, "dwq", first.dwq, got.dwq)
			kerntest.Equal(t, "dwk", first.dwk, got.dwk)
		}
	})
}

// Heads of zeros, of huge and of tiny numbers; a NaN stays in its head.
func TestQKNormExtremeHeads(t *testing.T) {
	p := newQK(1, 3, 1, 4)
	for i, head := range [][]float32{{0, 0, 0, 0}, {1e19, -1e19, 2e19, 0}, {1, float32(math.NaN()), 2, 3}, {1e-30, 2e-30, -1e-30, 0}, {3e38, -3e38, 1, 0}} {
		copy(p.x.F32()[i*4:], head)
	}
	got := p.run(t, 1, false, false, 0)
	kerntest.Near(t, "y", got.y, p.truth().y, 1e-6)
	for i, v := range got.dx.F32() {
		if bad := i/4 == 2; (v != v) != bad {
			t.Errorf("dx[%d,%d] = %v", i/4, i%4, v)
		}
	}
	for i, v := range got.dwk.F32() {
		if v != v {
			t.Errorf("dwk[%d] is NaN: the NaN is in a query", i)
		}
	}
}

// The gradients of the weights may be left out, both or either: frozen parameters.
func TestQKNormWithoutParameterGradients(t *testing.T) {
	p := newQK(6, 2, 1, 8)
	want := p.run(t, 1, false, false, 0)
	c, s := newCPU(t, 1)
	for i := range 4 {
		var dwq, dwk tensor.Tensor
		if i&1 != 0 {
			dwq = kerntest.New(8)
		}
		if i&2 != 0 {
			dwk = kerntest.New(8)
		}
		dx := kerntest.Clone(p.dy)
		c.QKNormBackward(s, dx, dwq, dwk, p.x, p.wq, p.wk, 2, eps, false, false)
		kerntest.Wait(t, s)
		kerntest.Equal(t, "dx", want.dx, dx)
		if i&1 != 0 {
			kerntest.Equal(t, "dwq", want.dwq, dwq)
		}
		if i&2 != 0 {
			kerntest.Equal(t, "dwk", want.dwk, dwk)
		}
	}
}

func TestQKNormRefuses(t *testing.T) {
	c, s := newCPU(t, 1)
	n, none := kerntest.New, tensor.Tensor{}
	x := n(2, 4, 6)
	kerntest.Panics(t, func() { c.QKNorm(s, n(2, 4, 6), n(2, 5, 6), n(6), n(6), 2, eps) }, "qk norm", "x is f32[2 5 6]", "2 heads")
	kerntest.Panics(t, func() { c.QKNorm(s, n(2, 4, 6), x, n(6), n(6), 4, eps) }, "4 heads")
	kerntest.Panics(t, func() { c.QKNorm(s, n(2, 4, 6), x, n(6), n(6), 0, eps) }, "0 heads")
	kerntest.Panics(t, func() { c.QKNorm(s, n(2, 4, 5), x, n(6), n(6), 2, eps) }, "y is f32[2 4 5]")
	kerntest.Panics(t, func() { c.QKNorm(s, n(2, 4, 6), x, n(6), n(5), 2, eps) }, "wk is f32[5]")
	kerntest.Panics(t, func() { c.QKNorm(s, x, x, n(6), n(6), 2, eps) }, "y is x")
	kerntest.Panics(t, func() { c.QKNormBackward(s, n(2, 4, 6), n(5), none, x, n(6), n(6), 2, eps, false, false) }, "qk norm backward", "dwq is f32[5]")
}
