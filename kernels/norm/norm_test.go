package norm

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

const eps = 1e-5

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

// naive is a norm in f64; LayerNorm where b is given, else RMSNorm.
func naive(c int, x, w, b []float64) (y, mean, rstd []float64) {
	y = make([]float64, len(x))
	for i := 0; i < len(x); i += c {
		var m, sq float64
		if b != nil {
			for _, v := range x[i : i+c] {
				m += v / float64(c)
			}
		}
		for _, v := range x[i : i+c] {
			sq += (v - m) * (v - m) / float64(c)
		}
		r := 1 / math.Sqrt(sq+float64(float32(eps)))
		for j, v := range x[i : i+c] {
			y[i+j] = (v - m) * r * w[j]
			if b != nil {
				y[i+j] += b[j]
			}
		}
		mean, rstd = append(mean, m), append(rstd, r)
	}
	return y, mean, rstd
}

// naiveBackward differentiates naive by hand.
func naiveBackward(c int, layer bool, dy, x, w, mean, rstd []float64) (dx, dw, db []float64) {
	dx, dw, db = make([]float64, len(x)), make([]float64, c), make([]float64, c)
	for i := 0; i < len(x); i += c {
		m, r := mean[i/c], rstd[i/c]
		var sg, sgx float64
		for j := range c {
			xh, g := (x[i+j]-m)*r, dy[i+j]*w[j]
			dw[j] += dy[i+j] * xh
			db[j] += dy[i+j]
			sgx += g * xh / float64(c)
			if layer {
				sg += g / float64(c)
			}
		}
		for j := range c {
			dx[i+j] = r * (dy[i+j]*w[j] - sg - (x[i+j]-m)*r*sgx)
		}
	}
	return dx, dw, db
}

type problem struct {
	n, c        int
	layer       bool
	x, w, b, dy tensor.Tensor
}

func newProblem(n, c int, layer bool) problem {
	r := kerntest.Rand(uint64(n*1009 + c))
	p := problem{n: n, c: c, layer: layer, x: kerntest.Normal(r, 2, n, c), w: kerntest.Normal(r, 1, c), dy: kerntest.Normal(r, 1, n, c)}
	if layer {
		p.b = kerntest.Normal(r, 1, c)
		for i := range p.x.F32() {
			p.x.F32()[i] += 3
		}
	}
	return p
}

type results struct{ y, mean, rstd, dx, dw, db tensor.Tensor }

// run makes both passes, with dx over a copy of dy where inPlace; add adds to
// outputs of the given value.
func (p problem) run(t testing.TB, threads int, inPlace, add bool, start float32) results {
	c, s := newCPU(t, threads)
	fill := func(shape ...int) tensor.Tensor {
		x := kerntest.New(shape...)
		for i := range x.F32() {
			x.F32()[i] = start
		}
		return x
	}
	r := results{kerntest.New(p.n, p.c), kerntest.New(p.n), kerntest.New(p.n), fill(p.n, p.c), fill(p.c), fill(p.c)}
	dy := p.dy
	if inPlace {
		r.dx = kerntest.Clone(dy)
		dy = r.dx
	}
	if p.layer {
		c.LayerNorm(s, r.y, r.mean, r.rstd, p.x, p.w, p.b, eps)
		c.LayerNormBackward(s, r.dx, r.dw, r.db, dy, p.x, p.w, r.mean, r.rstd, add, add)
	} else {
		c.RMSNorm(s, r.y, r.rstd, p.x, p.w, eps)
		c.RMSNormBackward(s, r.dx, r.dw, dy, p.x, p.w, r.rstd, add, add)
	}
	kerntest.Wait(t, s)
	return r
}

func each(t *testing.T, f func(t *testing.T, p problem)) {
	for _, layer := range []bool{false, true} {
		for _, size := range [][2]int{{1, 1}, {1, 8}, {3, 5}, {63, 64}, {65, 129}, {300, 96}, {2, 1000}, {0, 4}} {
			p := newProblem(size[0], size[1], layer)
			t.Run(fmt.Sprintf("layer=%v/%v", layer, size), func(t *testing.T) { f(t, p) })
		}
	}
}

func (p problem) f64() (dy, x, w, b []float64) {
	if p.layer {
		b = kerntest.F64(p.b)
	}
	return kerntest.F64(p.dy), kerntest.F64(p.x), kerntest.F64(p.w), b
}

func TestNormAgainstNaive(t *testing.T) {
	each(t, func(t *testing.T, p problem) {
		dy, x, w, b := p.f64()
		y, mean, rstd := naive(p.c, x, w, b)
		dx, dw, db := naiveBackward(p.c, p.layer, dy, x, w, mean, rstd)
		// Sums are f64; what is left is a handful of f32 roundings per element. With one
		// channel LayerNorm divides rounding noise of the mean by sqrt(eps).
		tol := 2e-6
		got := p.run(t, 1, false, false, 7)
		kerntest.Near(t, "y", got.y, y, tol)
		kerntest.Near(t, "rstd", got.rstd, rstd, tol)
		if p.c > 1 { // with one channel the gradient is a difference of equal numbers
			kerntest.Near(t, "dx", got.dx, dx, tol)
		}
		kerntest.Near(t, "dw", got.dw, dw, tol)
		if p.layer {
			kerntest.Near(t, "mean", got.mean, mean, tol)
			kerntest.Near(t, "db", got.db, db, tol)
		}
		// Adding to 1, and dx over dy.
		for _, v := range [][]float64{dx, dw, db} {
			for i := range v {
				v[i]++
			}
		}
		added := p.run(t, 1, false, true, 1)
		if p.c > 1 {
			kerntest.Near(t, "dx added", added.dx, dx, tol)
		}
		kerntest.Near(t, "dw added", added.dw, dw, tol)
		if p.layer {
			kerntest.Near(t, "db added", added.db, db, tol)
		}
		over := p.run(t, 1, true, false, 7)
		kerntest.Equal(t, "dx over dy", got.dx, over.dx)
		kerntest.Equal(t, "dw with dx over dy", got.dw, over.dw)
	})
}

func TestNormAgainstDifferences(t *testing.T) {
	for _, layer := range []bool{false, true} {
		p := newProblem(4, 6, layer)
		got := p.run(t, 1, false, false, 0)
		dy, x, w, b := p.f64()
		loss := func() float64 {
			y, _, _ := naive(p.c, x, w, b)
			return kerntest.Dot(y, dy)
		}
		kerntest.Near(t, "dx", got.dx, kerntest.Gradient(x, loss), 2e-6)
		kerntest.Near(t, "dw", got.dw, kerntest.Gradient(w, loss), 2e-6)
		if layer {
			kerntest.Near(t, "db", got.db, kerntest.Gradient(b, loss), 2e-6)
		}
	}
}

func TestNormBitsDoNotDependOnThreads(t *testing.T) {
	each(t, func(t *testing.T, p problem) {
		first := p.run(t, 1, false, true, 1)
		for _, threads := range kerntest.Threads[1:] {
			got := p.run(t, threads, false, true, 1)
			kerntest.Equal(t, "y", first.y, got.y)
			kerntest.Equal(t, "rstd", first.rstd, got.rstd)
			kerntest.Equal(t, "dx", first.dx, got.dx)
			kerntest.Equal(t, "dw", first.dw, got.dw)
			kerntest.Equal(t, "db", first.db, got.db)
		}
	})
}

// Rows of zeros, of huge and of tiny numbers, and of NaN.
func TestNormExtremeRows(t *testing.T) {
	for _, layer := range []bool{false, true} {
		p := newProblem(5, 4, layer)
		rows := [][]float32{{0, 0, 0, 0}, {1e19, -1e19, 2e19, 0}, {1e-30, 2e-30, -1e-30, 0}, {1, float32(math.NaN()), 2, 3}, {1, 2, 3, 4}}
		for i, r := range rows {
			copy(p.x.F32()[i*4:], r)
		}
		_, x, w, b := p.f64()
		y, _, rstd := naive(4, x, w, b)
		got := p.run(t, 1, false, false, 0)
		kerntest.Near(t, "y", got.y, y, 1e-6)
		kerntest.Near(t, "rstd", got.rstd, rstd, 1e-6)
		for i, v := range got.dx.F32() {
			if bad := i/4 == 3; (v != v) != bad {
				t.Errorf("layer=%v: dx[%d,%d] = %v", layer, i/4, i%4, v)
			}
		}
	}
}

// The gradients of w and b may be left out: frozen parameters.
func TestNormWithoutParameterGradients(t *testing.T) {
	none := tensor.Tensor{}
	for _, layer := range []bool{false, true} {
		p := newProblem(6, 8, layer)
		want := p.run(t, 1, false, false, 0)
		c, s := newCPU(t, 1)
		dx := kerntest.New(6, 8)
		if layer {
			c.LayerNormBackward(s, dx, none, none, p.dy, p.x, p.w, want.mean, want.rstd, false, false)
		} else {
			c.RMSNormBackward(s, dx, none, p.dy, p.x, p.w, want.rstd, false, false)
		}
		kerntest.Wait(t, s)
		kerntest.Equal(t, "dx", want.dx, dx)
	}
}

func TestNormRefusesShapes(t *testing.T) {
	c, s := newCPU(t, 1)
	n, none := kerntest.New, tensor.Tensor{}
	kerntest.Panics(t, func() { c.RMSNorm(s, n(2, 3), n(2), n(2, 4), n(4), eps) }, "rmsnorm", "y is f32[2 3]", "f32[2 4]")
	kerntest.Panics(t, func() { c.RMSNorm(s, n(2, 4), n(3), n(2, 4), n(4), eps) }, "rstd is f32[3]")
	kerntest.Panics(t, func() { c.RMSNorm(s, n(2, 4), n(2), n(2, 4), n(3), eps) }, "w is f32[3]")
	kerntest.Panics(t, func() { c.LayerNorm(s, n(2, 4), n(2), n(2), n(2, 4), n(4), n(5), eps) }, "layernorm", "b is f32[5]")
	kerntest.Panics(t, func() {
		c.LayerNormBackward(s, n(2, 4), n(4), none, n(2, 4), n(2, 4), n(4), n(2), n(2), false, false)
	}, "both or none")
	dy := n(2, 4)
	kerntest.Panics(t, func() { c.RMSNormBackward(s, dy, none, dy, n(2, 4), n(4), n(2), true, false) }, "dx is dy")
}
