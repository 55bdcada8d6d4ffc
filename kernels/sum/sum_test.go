package sum

import (
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

func TestSum(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1<<14 - 1, 1 << 14, 3<<14 + 5} {
		x := kerntest.Normal(kerntest.Rand(uint64(n)), 1, n)
		var want float64
		for _, v := range x.F32() {
			want += float64(v)
		}
		var first tensor.Tensor
		for i, threads := range kerntest.Threads {
			c, s := newCPU(t, threads)
			out := kerntest.Scalar(100)
			c.Sum(s, out, x, true)
			c.Sum(s, out, x, true)
			plain := kerntest.Scalar(math.NaN())
			c.Sum(s, plain, x, false)
			kerntest.Wait(t, s)
			if got := plain.F64()[0]; !(math.Abs(got-want) <= 1e-10*(1+math.Abs(want))) {
				t.Errorf("sum of %d: %v, want %v", n, got, want)
			}
			if got := out.F64()[0]; !(math.Abs(got-100-2*want) <= 1e-10*(100+math.Abs(want))) {
				t.Errorf("sum of %d added twice to 100: %v", n, got)
			}
			if i == 0 {
				first = plain
			}
			kerntest.Equal(t, "sum", first, plain)
		}
	}
	// In f32 the small ones would be lost.
	x := make([]float32, 1001)
	for i := range x {
		x[i] = 1e-4
	}
	x[0] = 1e8
	c, s := newCPU(t, 1)
	out := kerntest.Scalar(0)
	c.Sum(s, out, kerntest.Of(x, 1001), false)
	kerntest.Wait(t, s)
	if got := out.F64()[0]; !(math.Abs(got-1e8-0.1) < 1e-5) {
		t.Errorf("sum %v, want 1e8 + 0.1", got)
	}
}

func TestSumSquares(t *testing.T) {
	for _, n := range []int{0, 1, 1<<14 + 3, 100000} {
		x := kerntest.Normal(kerntest.Rand(uint64(n)), 1, n)
		var want float64
		for _, v := range x.F32() {
			want += float64(v) * float64(v)
		}
		var first tensor.Tensor
		for i, threads := range kerntest.Threads {
			c, s := newCPU(t, threads)
			out := kerntest.Scalar(math.NaN())
			c.SumSquares(s, out, x, false)
			c.SumSquares(s, out, x, true)
			kerntest.Wait(t, s)
			if got := out.F64()[0]; !(math.Abs(got-2*want) <= 1e-12*want) {
				t.Errorf("n=%d: %v, want twice %v", n, got, want)
			}
			if i == 0 {
				first = out
			}
			kerntest.Equal(t, "sum", first, out)
		}
	}
	// 1e30 squared is beyond f32 and fine in f64; NaN and infinities show.
	c, s := newCPU(t, 1)
	for x, want := range map[float64]float64{1e30: 1e60, math.Inf(-1): math.Inf(1), math.NaN(): math.NaN()} {
		out := kerntest.Scalar(0)
		c.SumSquares(s, out, kerntest.Of([]float32{1, float32(x), 2}, 3), false)
		kerntest.Wait(t, s)
		if msg := kerntest.Compare(out.F64(), []float64{want}, 1e-6); msg != "" {
			t.Errorf("%v: %s", x, msg)
		}
	}
}

func TestSumsRefuse(t *testing.T) {
	c, s := newCPU(t, 1)
	n := kerntest.New
	kerntest.Panics(t, func() { c.Sum(s, n(1), n(2), false) }, "sum", "out is f32[1]", "f64[1]")
	kerntest.Panics(t, func() { c.SumSquares(s, n(1), n(3), false) }, "out is f32[1]")
	kerntest.Panics(t, func() { c.Sum(s, kerntest.Scalar(0), tensor.Tensor{}, false) }, "sum: x is none")
}
