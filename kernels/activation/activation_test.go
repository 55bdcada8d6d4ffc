package activation

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

func silu(g float64) float64 { return g / (1 + math.Exp(-g)) }

func gelu(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// derivative is f' by the central difference of five points, good to 1e-11.
func derivative(f func(float64) float64, x float64) float64 {
	h := 1e-3 * max(1, math.Abs(x)/8)
	return (8*(f(x+h)-f(x-h)) - (f(x+2*h) - f(x-2*h))) / (12 * h)
}

// siluPrime and geluPrime are the derivatives by hand.
func siluPrime(g float64) float64 {
	s := 1 / (1 + math.Exp(-g))
	return s * (1 + g*(1-s))
}

func geluPrime(x float64) float64 {
	k := math.Sqrt(2 / math.Pi)
	th := math.Tanh(k * (x + 0.044715*x*x*x))
	return (1+th)/2 + x/2*(1-th*th)*k*(1+3*0.044715*x*x)
}

type results struct{ swiglu, dgate, dup, gelu, dx tensor.Tensor }

func run(t testing.TB, threads int, dy, gate, up tensor.Tensor) results {
	c, s := newCPU(t, threads)
	n := func() tensor.Tensor { return kerntest.New(gate.Shape...) }
	r := results{swiglu: n(), gelu: n(), dx: n()}
	x := pair(gate, up)
	dx := kerntest.New(x.Shape...)
	rows := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(x.Shape[0], x.Shape[1]/2) }
	c.SwiGLU(s, rows(r.swiglu), x)
	c.SwiGLUBackward(s, dx, rows(dy), x)
	c.GELU(s, r.gelu, gate)
	c.GELUBackward(s, r.dx, dy, gate)
	kerntest.Wait(t, s)
	r.dgate, r.dup = halves(dx)
	return r
}

// width is the channels of a row: what does not divide is one row.
func width(n int) int {
	for _, f := range []int{1000, 63, 11} {
		if n%f == 0 && n > 0 {
			return f
		}
	}
	return n
}

// pair puts gate and up side by side, in rows of width.
func pair(gate, up tensor.Tensor) tensor.Tensor {
	f := width(gate.Numel())
	n := gate.Numel() / max(f, 1)
	x := kerntest.New(n, 2*f)
	for r := range n {
		copy(x.F32()[2*f*r:], gate.F32()[f*r:f*(r+1)])
		copy(x.F32()[2*f*r+f:], up.F32()[f*r:f*(r+1)])
	}
	return x
}

// halves is pair's inverse.
func halves(x tensor.Tensor) (gate, up tensor.Tensor) {
	n, f := x.Shape[0], x.Shape[1]/2
	gate, up = kerntest.New(n*f), kerntest.New(n*f)
	for r := range n {
		copy(gate.F32()[f*r:f*(r+1)], x.F32()[2*f*r:])
		copy(up.F32()[f*r:f*(r+1)], x.F32()[2*f*r+f:2*f*(r+1)])
	}
	return gate, up
}

func TestActivationsAgainstNaive(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 63, 64, 65, 1000, 9001} {
		r := kerntest.Rand(uint64(n))
		dy, gate, up := kerntest.Normal(r, 1, n), kerntest.Normal(r, 3, n), kerntest.Normal(r, 1, n)
		got := run(t, 1, dy, gate, up)
		d, g, u := kerntest.F64(dy), kerntest.F64(gate), kerntest.F64(up)
		want := map[string][]float64{}
		for i := range n {
			add := func(name string, v float64) { want[name] = append(want[name], v) }
			add("swiglu", silu(g[i])*u[i])
			add("dgate", d[i]*u[i]*siluPrime(g[i]))
			add("dup", d[i]*silu(g[i]))
			add("gelu", gelu(g[i]))
			add("dx", d[i]*geluPrime(g[i]))
			if a, b := siluPrime(g[i]), derivative(silu, g[i]); math.Abs(a-b) > 1e-9 {
				t.Fatalf("silu'(%v) = %v by hand, %v by differences", g[i], a, b)
			}
			if a, b := geluPrime(g[i]), derivative(gelu, g[i]); math.Abs(a-b) > 1e-9 {
				t.Fatalf("gelu'(%v) = %v by hand, %v by differences", g[i], a, b)
			}
		}
		// A few f32 roundings; an exponent of 8 is known to 4e-7 only, and its exponential too.
		const tol = 1.5e-6
		kerntest.Near(t, "swiglu", got.swiglu, want["swiglu"], tol)
		kerntest.Near(t, "dgate", got.dgate, want["dgate"], tol)
		kerntest.Near(t, "dup", got.dup, want["dup"], tol)
		kerntest.Near(t, "gelu", got.gelu, want["gelu"], tol)
		kerntest.Near(t, "dx", got.dx, want["dx"], tol)
		for _, threads := range kerntest.Threads[1:] {
			again := run(t, threads, dy, gate, up)
			kerntest.Equal(t, fmt.Sprint(threads, " threads: swiglu"), got.swiglu, again.swiglu)
			kerntest.Equal(t, fmt.Sprint(threads, " threads: dgate"), got.dgate, again.dgate)
			kerntest.Equal(t, fmt.Sprint(threads, " threads: dup"), got.dup, again.dup)
			kerntest.Equal(t, fmt.Sprint(threads, " threads: gelu"), got.gelu, again.gelu)
			kerntest.Equal(t, fmt.Sprint(threads, " threads: dx"), got.dx, again.dx)
		}
	}
}

// Far out, the functions are 0 or the identity, and nothing overflows on the way.
func TestActivationsFarOut(t *testing.T) {
	nan := float32(math.NaN())
	x := []float32{-1e4, -200, -100, -88.8, -87.4, -60, 0, 60, 87.4, 88.8, 100, 200, 1e4, nan}
	n := len(x)
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = 1
	}
	got := run(t, 1, kerntest.Of(ones, n), kerntest.Of(x, n), kerntest.Of(ones, n))
	for i, v := range x {
		step, ramp := float64(0), float64(0)
		switch {
		case v > 0:
			step, ramp = 1, float64(v)
		case v == 0:
			step = 0.5
		case v != v:
			step, ramp = math.NaN(), math.NaN()
		}
		for name, pair := range map[string][2]float64{
			"swiglu": {float64(got.swiglu.F32()[i]), ramp}, "dup": {float64(got.dup.F32()[i]), ramp},
			"gelu": {float64(got.gelu.F32()[i]), ramp}, "dgate": {float64(got.dgate.F32()[i]), step},
			"dx": {float64(got.dx.F32()[i]), step},
		} {
			if !(math.Abs(pair[0]-pair[1]) < 1e-20) && pair[0] != pair[1] && !(math.IsNaN(pair[0]) && math.IsNaN(pair[1])) {
				t.Errorf("%s at %v: %v, want %v", name, v, pair[0], pair[1])
			}
		}
	}
}

func TestActivationsInPlace(t *testing.T) {
	r := kerntest.Rand(4)
	dy, gate, up := kerntest.Normal(r, 1, 3, 33), kerntest.Normal(r, 1, 3, 33), kerntest.Normal(r, 1, 3, 33)
	want := run(t, 1, dy, gate, up)
	c, s := newCPU(t, 2)
	x := pair(gate, up)
	c.SwiGLUBackward(s, x, dy.Reshape(x.Shape[0], x.Shape[1]/2), x)
	dx, y := kerntest.Clone(dy), kerntest.Clone(gate)
	c.GELUBackward(s, dx, dx, gate)
	c.GELU(s, y, y)
	kerntest.Wait(t, s)
	g, u := halves(x)
	kerntest.Equal(t, "dgate over gate", want.dgate, g)
	kerntest.Equal(t, "dup over up", want.dup, u)
	kerntest.Equal(t, "dx over dy", want.dx, dx)
	kerntest.Equal(t, "gelu over x", want.gelu, y)
}

func TestActivationsRefuseShapes(t *testing.T) {
	c, s := newCPU(t, 1)
	n := kerntest.New
	kerntest.Panics(t, func() { c.SwiGLU(s, n(2, 3), n(2, 3)) }, "swiglu", "x is f32[2 3]", "f32[2 6]")
	kerntest.Panics(t, func() { c.GELU(s, n(2, 3), n(6)) }, "gelu", "y is f32[2 3]")
	kerntest.Panics(t, func() { c.GELUBackward(s, tensor.Tensor{}, n(6), n(6)) }, "gelu backward", "dx is none")
}
