package loss

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

// naive is the losses in f64.
func naive(v int, x []float64, targets []int32) []float64 {
	out := make([]float64, len(targets))
	for i, t := range targets {
		if t < 0 {
			continue
		}
		top := math.Inf(-1)
		for _, l := range x[i*v : (i+1)*v] {
			top = math.Max(top, l)
		}
		var sum float64
		for _, l := range x[i*v : (i+1)*v] {
			sum += math.Exp(l - top)
		}
		out[i] = math.Log(sum) + top - x[i*v+int(t)]
	}
	return out
}

// naiveGrad is softmax minus one-hot in f64.
func naiveGrad(v int, x []float64, targets []int32, scale float64) []float64 {
	out := make([]float64, len(x))
	losses := naive(v, x, targets)
	for i, t := range targets {
		if t < 0 {
			continue
		}
		lse := losses[i] + x[i*v+int(t)]
		for j := range v {
			out[i*v+j] = scale * math.Exp(x[i*v+j]-lse)
		}
		out[i*v+int(t)] -= scale
	}
	return out
}

func run(t testing.TB, threads int, x tensor.Tensor, targets []int32, scale float32, grad bool) (loss, logits tensor.Tensor) {
	c, s := newCPU(t, threads)
	loss, logits = kerntest.New(len(targets)), kerntest.Clone(x)
	c.CrossEntropy(s, loss, logits, kerntest.IDs(targets...), scale, grad)
	kerntest.Wait(t, s)
	return loss, logits
}

func TestCrossEntropyAgainstNaive(t *testing.T) {
	const scale = 0.37
	for _, v := range []int{1, 2, 15, 16, 17, 255, 256, 257, 1031, 50257} {
		for _, n := range []int{0, 1, 5, 67} {
			if n*v > 1<<20 {
				continue
			}
			t.Run(fmt.Sprint(n, "x", v), func(t *testing.T) {
				r := kerntest.Rand(uint64(n*v + 1))
				x := kerntest.Normal(r, 4, n, v)
				targets := make([]int32, n)
				for i := range targets {
					targets[i] = int32(r.IntN(v))
					if i%4 == 3 {
						targets[i] = -100
					}
				}
				loss, kept := run(t, 1, x, targets, scale, false)
				kerntest.Equal(t, "logits without grad", kept, x)
				lossGrad, grad := run(t, 1, x, targets, scale, true)
				kerntest.Equal(t, "loss with grad", lossGrad, loss)
				kerntest.Near(t, "loss", loss, naive(v, kerntest.F64(x), targets), 5e-7)
				kerntest.Near(t, "grad", grad, naiveGrad(v, kerntest.F64(x), targets, float64(float32(scale))), 1e-6)
				for _, threads := range kerntest.Threads[1:] {
					l, g := run(t, threads, x, targets, scale, true)
					kerntest.Equal(t, fmt.Sprint(threads, " threads: loss"), l, loss)
					kerntest.Equal(t, fmt.Sprint(threads, " threads: grad"), g, grad)
				}
			})
		}
	}
}

func TestCrossEntropyAgainstDifferences(t *testing.T) {
	const n, v, scale = 5, 7, 2.5
	x := kerntest.Normal(kerntest.Rand(3), 2, n, v)
	targets := []int32{0, 6, -1, 3, 3}
	_, grad := run(t, 1, x, targets, scale, true)
	x64 := kerntest.F64(x)
	want := kerntest.Gradient(x64, func() float64 {
		var sum float64
		for _, l := range naive(v, x64, targets) {
			sum += scale * l
		}
		return sum
	})
	kerntest.Near(t, "grad", grad, want, 1e-6)
}

// Logits of any size, and shifted so far that every exponential alone would be 0 or Inf.
func TestCrossEntropyLargeLogits(t *testing.T) {
	x := []float32{
		1e4, -1e4, 0, 5,
		-1e4, -1e4 + 1, -1e4 + 2, -1e4,
		1e4, 1e4, 1e4, 1e4,
		3e38, -3e38, 0, 0,
		-90, -91, -300, -95,
	}
	targets := []int32{1, 2, 0, 0, 3}
	xt := kerntest.Of(x, 5, 4)
	loss, grad := run(t, 1, xt, targets, 1, true)
	kerntest.Near(t, "loss", loss, naive(4, kerntest.F64(xt), targets), 1e-6)
	kerntest.Near(t, "grad", grad, naiveGrad(4, kerntest.F64(xt), targets, 1), 1e-6)
}

func TestCrossEntropyAllMasked(t *testing.T) {
	x := kerntest.Normal(kerntest.Rand(5), 1, 9, 33)
	x.F32()[40] = float32(math.NaN()) // hidden by its mask
	targets := []int32{-1, -2, -100, math.MinInt32, -1, -1, -1, -1, -1}
	loss, grad := run(t, 2, x, targets, 1, true)
	kerntest.Near(t, "loss", loss, make([]float64, 9), 0)
	kerntest.Near(t, "grad", grad, make([]float64, 9*33), 0)
}

func TestCrossEntropyPassesNaNOn(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		for at := range 20 { // every place in the vector and its remainder
			x := kerntest.Normal(kerntest.Rand(6), 1, 3, 20)
			x.F32()[20+at] = float32(bad)
			loss, grad := run(t, 1, x, []int32{0, 1, 2}, 1, true)
			for i, l := range loss.F32() {
				if (l != l) != (i == 1) {
					t.Errorf("%v at [1,%d]: loss[%d] = %v", bad, at, i, l)
				}
			}
			for i, g := range grad.F32() {
				if (g != g) && i/20 != 1 {
					t.Errorf("%v at [1,%d]: grad[%d,%d] = %v", bad, at, i/20, i%20, g)
				}
			}
			if g := grad.F32()[20+at]; g == g {
				t.Errorf("%v at [1,%d]: grad there is %v", bad, at, g)
			}
		}
	}
	// -Inf is a probability of 0.
	x := kerntest.Of([]float32{float32(math.Inf(-1)), 0, 0}, 1, 3)
	loss, grad := run(t, 1, x, []int32{2}, 1, true)
	kerntest.Near(t, "loss", loss, []float64{math.Ln2}, 1e-6)
	kerntest.Near(t, "grad", grad, []float64{0, 0.5, -0.5}, 1e-6)
}

func TestCrossEntropyRefusesTargets(t *testing.T) {
	c, s := newCPU(t, 1)
	c.CrossEntropy(s, kerntest.New(2), kerntest.Normal(kerntest.Rand(1), 1, 2, 3), kerntest.IDs(0, 3), 1, false)
	if err := kerntest.Sync(s); err == nil || !strings.Contains(err.Error(), "cross entropy: target 3 of row 1 is outside the vocabulary of 3") {
		t.Errorf("error %v", err)
	}
	n := kerntest.New
	kerntest.Panics(t, func() { c.CrossEntropy(s, n(3), n(2, 3), kerntest.IDs(0, 1), 1, false) }, "loss is f32[3]", "f32[2]")
	kerntest.Panics(t, func() { c.CrossEntropy(s, n(2), n(2, 3), kerntest.IDs(0), 1, false) }, "targets is i32[1]")
}
