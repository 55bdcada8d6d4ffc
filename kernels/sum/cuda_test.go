package sum

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func scalar(t testing.TB, s *cuda.Stream, v float64) tensor.Tensor {
	return gputest.Upload(t, s, kerntest.Scalar(v), dtype.F64)
}

// Sums of f64 in another order than the CPU's differ by roundings of f64.
func TestCUDASumsAgainstCPU(t *testing.T) {
	c, s := newCUDA(t)
	const before = 1000.5
	for _, n := range []int{0, 1, 3, 4, 5, 7, 8, 9, 255, 1000, 4095, 4096, 4097, 8192, 8193, 100003, 5 << 20} {
		x := gputest.BF16(kerntest.Normal(kerntest.Rand(uint64(n)), 2, n))
		var sum, squares, size float64
		for _, v := range x.F32() {
			sum += float64(v)
			size += math.Abs(float64(v))
			squares += float64(v) * float64(v)
		}
		for _, shifted := range []bool{false, true} {
			f32, bf16 := gputest.Upload(t, s, x, dtype.F32), gputest.Upload(t, s, x, dtype.BF16)
			if shifted {
				f32, bf16 = gputest.Shifted(t, s, f32), gputest.Shifted(t, s, bf16)
			}
			for _, add := range []bool{false, true} {
				for _, k := range []struct {
					name        string
					op          func(s device.Stream, out, x tensor.Tensor, add bool)
					x           tensor.Tensor
					want, terms float64
				}{
					{"sum", c.Sum, f32, sum, size},
					{"squares of f32", c.SumSquares, f32, squares, squares},
					{"squares of bf16", c.SumSquares, bf16, squares, squares},
				} {
					start, out := scalar(t, s, before), scalar(t, s, 0)
					got := gputest.Twice(t, s, func() {
						if add {
							s.Copy(out.Buf, start.Buf)
						}
						k.op(s, out, k.x, add)
					}, out)[0].F64()[0]
					want, terms := k.want, k.terms
					if add {
						want, terms = want+before, terms+before
					}
					if !(math.Abs(got-want) <= 1e-13*terms) {
						t.Errorf("%s of %d, shifted=%v add=%v: %v, want %v", k.name, n, shifted, add, got, want)
					}
				}
			}
		}
	}
}

// Whole numbers add up exactly in any order; squares of the largest and smallest
// f32 neither overflow nor vanish; NaN and infinities show.
func TestCUDASumsExactly(t *testing.T) {
	c, s := newCUDA(t)
	const n = 3000001
	ones := kerntest.New(n)
	for i := range ones.F32() {
		ones.F32()[i] = float32(i%7 - 3)
	}
	sum := func(op func(s device.Stream, out, x tensor.Tensor, add bool), x tensor.Tensor, dt dtype.DType) float64 {
		out := scalar(t, s, 0)
		op(s, out, gputest.Upload(t, s, x, dt), false)
		return gputest.Download(t, s, out).F64()[0]
	}
	var whole, squares float64
	for _, v := range ones.F32() {
		whole += float64(v)
		squares += float64(v * v)
	}
	if got := sum(c.Sum, ones, dtype.F32); got != whole {
		t.Errorf("sum = %v, want %v", got, whole)
	}
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		if got := sum(c.SumSquares, ones, dt); got != squares {
			t.Errorf("squares of %s = %v, want %v", dt, got, squares)
		}
		for _, v := range []float64{math.Ldexp(1, 120), math.Ldexp(-1, -120)} {
			x := kerntest.Of(slices.Repeat([]float32{float32(v)}, 67), 67)
			if got, want := sum(c.SumSquares, x, dt), 67*v*v; got != want {
				t.Errorf("squares of 67 %s of %v = %v, want %v", dt, v, got, want)
			}
		}
		for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
			x := kerntest.Clone(ones)
			x.F32()[n-1] = float32(bad)
			if got := sum(c.SumSquares, x, dt); got != bad*bad && !(math.IsNaN(bad) && math.IsNaN(got)) {
				t.Errorf("squares of %s with %v = %v", dt, bad, got)
			}
		}
	}
}

func TestCUDASumsRefuse(t *testing.T) {
	c, s := newCUDA(t)
	out, h := scalar(t, s, 0), gputest.New(t, s, dtype.BF16, 4)
	kerntest.Panics(t, func() { c.Sum(s, out, h, false) }, "sum", "x is bf16[4]", "f32[4]")
	kerntest.Panics(t, func() { c.SumSquares(s, h, h, false) }, "sum of squares", "out is bf16[4]", "f64[1]")
	kerntest.Panics(t, func() { c.SumSquares(s, out, gputest.New(t, s, dtype.F16, 4), false) }, "x is f16[4]")
}

func BenchmarkCUDASums(b *testing.B) {
	c, s := newCUDA(b)
	out := scalar(b, s, 0)
	for _, n := range []int{1 << 20, 1 << 29} {
		x := gputest.Noise(b, s, 1, dtype.F32, n)
		b.Run(fmt.Sprintf("squares-f32/%d", n), func(b *testing.B) {
			gputest.Bandwidth(b, s, 4*n, func(int) { c.SumSquares(s, out, x, false) })
		})
		// The same memory as twice as many bf16, every other of them noise.
		h := tensor.New(x.Buf, dtype.BF16, 2*n)
		b.Run(fmt.Sprintf("squares-bf16/%d", 2*n), func(b *testing.B) {
			gputest.Bandwidth(b, s, 4*n, func(int) { c.SumSquares(s, out, h, false) })
		})
	}
}
