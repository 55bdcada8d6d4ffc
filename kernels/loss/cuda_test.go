package loss

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
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

// onGPU is run on a GPU, twice, with logits of type dt that are x; shifted ones do
// not begin at a multiple of 16 bytes.
func onGPU(t *testing.T, c CUDA, s *cuda.Stream, x tensor.Tensor, targets []int32, scale float32, grad bool, dt dtype.DType, shifted bool) (loss, logits tensor.Tensor) {
	t.Helper()
	from, work := gputest.Upload(t, s, x, dt), gputest.New(t, s, dt, x.Shape...)
	if shifted {
		work = gputest.Shifted(t, s, work)
	}
	out, list := gputest.New(t, s, dtype.F32, len(targets)), gputest.Upload(t, s, kerntest.IDs(targets...), dtype.I32)
	got := gputest.Twice(t, s, func() {
		s.Copy(work.Buf, from.Buf)
		c.CrossEntropy(s, out, work, list, scale, grad)
	}, out, work)
	return got[0], got[1]
}

// judge holds a GPU's loss and gradient against f64, the gradient with the CPU's,
// rounded, as the measure.
func judge(t *testing.T, what string, loss, grad, x tensor.Tensor, targets []int32, scale float32) {
	t.Helper()
	v, x64 := x.Shape[1], kerntest.F64(x)
	near(t, what+" loss", loss, naive(v, x64, targets), 1e-6, 1e-6)
	want := softmaxGrad(v, x64, targets, float64(scale))
	if grad.DType == dtype.F32 || v == 1 { // of one logit all is rounding
		near(t, what+" grad", grad, want, 1e-6*float64(scale), 1e-5)
		return
	}
	_, emulated := run(t, 2, x, targets, scale, true)
	gputest.Compare(t, what+" grad", grad, want, kerntest.F64(gputest.BF16(emulated)))
}

// near allows an error of floor, and of tol of what is wanted beside.
func near(t *testing.T, what string, got tensor.Tensor, want []float64, floor, tol float64) {
	t.Helper()
	for i, g := range gputest.Floats(got) {
		if w := want[i]; g != w && !(math.Abs(g-w) <= floor+tol*math.Abs(w)) {
			t.Errorf("%s %v: [%d] = %v, want %v", what, got, i, g, w)
			return
		}
	}
}

// softmaxGrad is naiveGrad for logits so large that the logarithm of the sum is lost
// beside them.
func softmaxGrad(v int, x []float64, targets []int32, scale float64) []float64 {
	out := make([]float64, len(x))
	for i, t := range targets {
		row, grad := x[i*v:(i+1)*v], out[i*v:(i+1)*v]
		if t < 0 {
			continue
		}
		top, sum := slices.Max(row), 0.
		for j, l := range row {
			grad[j] = math.Exp(l - top)
			sum += grad[j]
		}
		for j := range grad {
			grad[j] *= scale / sum
		}
		grad[t] -= scale
	}
	return out
}

// rounded is x in numbers that dt holds.
func rounded(x tensor.Tensor, dt dtype.DType) tensor.Tensor {
	if dt == dtype.BF16 {
		return gputest.BF16(kerntest.Clone(x))
	}
	return x
}

// Rows of odd length begin at every address that an element may have; long ones do
// not fit into shared memory. A few blocks, which take many rows each, give the same
// bits as one for each row.
func TestCUDACrossEntropy(t *testing.T) {
	c, s := newCUDA(t)
	const scale = 0.37
	for _, size := range [][2]int{{1, 1}, {1000, 1}, {65, 7}, {63, 15}, {33, 17}, {1000, 128}, {65, 255}, {9, 1031}, {17, 32000}, {65, 50257}, {1, 151936}, {63, 151936}, {8, 152064}, {3, 256001}} {
		n, v := size[0], size[1]
		r := kerntest.Rand(uint64(n*v + 1))
		all := kerntest.Normal(r, 4, n, v)
		targets := make([]int32, n)
		for i := range targets {
			targets[i] = int32(r.IntN(v))
			if i%4 == 3 || i%7 == 6 {
				targets[i] = -100
			}
		}
		for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
			if dt == dtype.F32 && n*v > 1<<20 && n > 17 {
				continue
			}
			x := rounded(all, dt)
			for _, shifted := range []bool{false, true} {
				what := fmt.Sprintf("%dx%d %s, shifted=%v:", n, v, dt, shifted)
				loss, grad := onGPU(t, c, s, x, targets, scale, true, dt, shifted)
				judge(t, what, loss, grad, x, targets, scale)
				few := c
				few.sms = 2
				lossOfFew, gradOfFew := onGPU(t, few, s, x, targets, scale, true, dt, shifted)
				kerntest.Equal(t, what+" loss of few blocks", lossOfFew, loss)
				kerntest.Equal(t, what+" grad of few blocks", gradOfFew, grad)
				alone, kept := onGPU(t, c, s, x, targets, scale, false, dt, shifted)
				kerntest.Equal(t, what+" loss without grad", alone, loss)
				gputest.Near(t, what+" logits without grad", kept, kerntest.F64(x), 0)
			}
		}
	}
}

// Logits of any size, and shifted so far that every exponential alone would be 0 or Inf.
func TestCUDACrossEntropyLargeLogits(t *testing.T) {
	c, s := newCUDA(t)
	rows := [][4]float32{
		{1e4, -1e4, 0, 5},
		{-1e4, -1e4 + 1, -1e4 + 2, -1e4},
		{1e4, 1e4, 1e4, 1e4},
		{5e8, -5e8, 0, 0},
		{4, -3e38, 0, 5},
		{-90, -91, -300, -95},
		{-5e8, -5e8, -5e8, -5e8},
		{5e8, float32(math.Inf(-1)), 0, 1},
		{float32(math.Inf(-1)), 0, 0, float32(math.Inf(-1))},
	}
	targets := []int32{1, 2, 0, 0, 0, 3, 2, 0, 2}
	var flat []float32
	for _, r := range rows {
		flat = append(flat, r[:]...)
	}
	for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
		x := rounded(kerntest.Of(flat, len(rows), 4), dt)
		loss, grad := onGPU(t, c, s, x, targets, 1, true, dt, false)
		judge(t, dt.String(), loss, grad, x, targets, 1)
	}
}

func TestCUDACrossEntropyAllMasked(t *testing.T) {
	c, s := newCUDA(t)
	for _, v := range []int{33, 50257} {
		x := kerntest.Normal(kerntest.Rand(5), 1, 9, v)
		x.F32()[v+7] = float32(math.NaN()) // hidden by its mask
		targets := []int32{-1, -2, -100, math.MinInt32, -1, -1, -1, -1, -1}
		loss, grad := onGPU(t, c, s, x, targets, 1, true, dtype.BF16, false)
		gputest.Near(t, "loss", loss, make([]float64, 9), 0)
		gputest.Near(t, "grad", grad, make([]float64, 9*v), 0)
	}
}

// A NaN or +Inf makes its row NaN and no other, wherever it stands, and so does a
// largest logit that leaves no room for an exponent; -Inf alone has a probability of
// 0, and a row of nothing else none at all.
func TestCUDACrossEntropyPassesNaNOn(t *testing.T) {
	c, s := newCUDA(t)
	const v = 23 // elements before the chunks, in them and behind
	nan, inf := math.NaN(), math.Inf(1)
	var flat []float32
	var bad []bool
	var targets []int32
	add := func(spoiled bool, change func(row []float32)) {
		row := kerntest.Normal(kerntest.Rand(uint64(len(bad))), 1, v).F32()
		change(row)
		flat, bad, targets = append(flat, row...), append(bad, spoiled), append(targets, 1)
	}
	for at := range v {
		for _, x := range []float64{nan, inf} {
			add(true, func(row []float32) { row[at] = float32(x) })
			add(false, func([]float32) {})
		}
	}
	for _, x := range []float64{-inf, -3e38, 3e38} {
		add(true, func(row []float32) {
			for i := range row {
				row[i] = float32(x)
			}
		})
	}
	add(false, func(row []float32) { row[0], row[v-1] = float32(-inf), float32(-inf) })
	x := gputest.BF16(kerntest.Of(flat, len(bad), v))
	loss, grad := onGPU(t, c, s, x, targets, 1, true, dtype.BF16, false)
	g := gputest.Floats(grad)
	for i, l := range loss.F32() {
		if (l != l) != bad[i] {
			t.Errorf("row %d: loss %v, want NaN: %v", i, l, bad[i])
		}
		for j := range v {
			if e := g[i*v+j]; (e != e) != bad[i] {
				t.Errorf("row %d: grad[%d] = %v, want NaN: %v", i, j, e, bad[i])
			}
		}
	}
}

// A target outside the vocabulary cannot be refused without waiting for the GPU: it
// makes its row NaN.
func TestCUDACrossEntropyTargetOutside(t *testing.T) {
	c, s := newCUDA(t)
	for _, v := range []int{3, 1031} {
		x := gputest.BF16(kerntest.Normal(kerntest.Rand(1), 1, 4, v))
		loss, grad := onGPU(t, c, s, x, []int32{0, int32(v), math.MaxInt32, 2}, 1, true, dtype.BF16, false)
		g := gputest.Floats(grad)
		for i, l := range loss.F32() {
			outside := i == 1 || i == 2
			if (l != l) != outside {
				t.Errorf("loss[%d] = %v", i, l)
			}
			for j := range v {
				if e := g[i*v+j]; (e != e) != outside {
					t.Errorf("grad[%d,%d] = %v", i, j, e)
				}
			}
		}
	}
}

// Rows behind the 2^31st element are done as the first ones are.
func TestCUDACrossEntropyBeyond31Bits(t *testing.T) {
	const v, last, scale = 151936, 16, 0.5
	const n = 1<<31/v + 64
	gputest.NeedMemory(t, 2*n*v+1<<30)
	c, s := newCUDA(t)
	logits, loss := gputest.New(t, s, dtype.BF16, n, v), gputest.New(t, s, dtype.F32, n)
	x := gputest.BF16(kerntest.Normal(kerntest.Rand(9), 3, last, v))
	s.Copy(logits.Rows(n-last, n).Buf, gputest.Upload(t, s, x, dtype.BF16).Buf)
	targets := make([]int32, n)
	for i := range targets {
		targets[i] = -1
		if i >= n-last {
			targets[i] = int32(i * 7 % v)
		}
	}
	c.CrossEntropy(s, loss, logits, gputest.Upload(t, s, kerntest.IDs(targets...), dtype.I32), scale, true)
	judge(t, "last rows:", gputest.Download(t, s, loss.Rows(n-last, n)), gputest.Download(t, s, logits.Rows(n-last, n)), x, targets[n-last:], scale)
	for _, row := range []int{0, 1<<31/v - 1, 1<<31/v + 1, n - last - 1} {
		gputest.Near(t, fmt.Sprint("masked row ", row), gputest.Download(t, s, logits.Rows(row, row+1)), make([]float64, v), 0)
	}
}

// BenchmarkCUDACrossEntropy counts the logits read once, and written once with grad.
func BenchmarkCUDACrossEntropy(b *testing.B) {
	for _, size := range [][2]int{{2048, 151936}, {8192, 151936}, {8192, 50304}, {8192, 50257}, {65536, 256}} {
		n, v := size[0], size[1]
		for _, grad := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dx%d,grad=%v", n, v, grad), func(b *testing.B) {
				c, s := newCUDA(b)
				host := kerntest.Normal(kerntest.Rand(1), 3, 64, v)
				block := gputest.Upload(b, s, host, dtype.BF16)
				var logits []tensor.Tensor
				for range min(gputest.Sets(2*n*v), 8) {
					x := gputest.New(b, s, dtype.BF16, n, v)
					for at := 0; at < n; at += 64 {
						s.Copy(x.Rows(at, at+64).Buf, block.Buf)
					}
					logits = append(logits, x)
				}
				targets := make([]int32, n)
				for i := range targets {
					targets[i] = int32(i * 31 % v)
				}
				loss, list := gputest.New(b, s, dtype.F32, n), gputest.Upload(b, s, kerntest.IDs(targets...), dtype.I32)
				bytes := 2 * n * v
				if grad {
					bytes *= 2
				}
				gputest.Bandwidth(b, s, bytes, func(i int) { c.CrossEntropy(s, loss, logits[i%len(logits)], list, 1, grad) })
			})
		}
	}
}
