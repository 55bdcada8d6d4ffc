package linear

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// newFake is the products on fakes of the driver and of cuBLASLt, which computes on
// the host. It has no kernels of its own.
func newFake(t *testing.T) (CUDA, *cuda.Stream) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cudatest.Fake(t)
	fakelt.Fake(t).Offer(fakelt.Good)
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	env := nv.NewEnv(dev)
	mul, err := cublaslt.New(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, end := range []func() error{mul.Close, env.Close, dev.Close} {
			if err := end(); err != nil {
				t.Error(err)
			}
		}
	})
	return CUDA{env: env, mul: mul}, nv.Stream(s)
}

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

// rounded is a problem whose tensors bf16 holds exactly.
func rounded(n, i, o int) problem {
	p := newProblem(n, i, o)
	for _, x := range []tensor.Tensor{p.x, p.w, p.b, p.dy} {
		gputest.BF16(x)
	}
	return p
}

// mode is how a product is asked for.
type mode struct {
	bias    bool
	r       string      // "": none, "y": the result itself, "r": another tensor
	grads   dtype.DType // of dw
	add     bool        // dx and dw are added to what they hold
	shifted bool        // the bias begins where no vector does
}

// f64 is the product in the precision of the reference.
func (p problem) f64(m mode, r []float64) (y, dx, dw []float64) {
	x, w, b, dy := kerntest.F64(p.x), kerntest.F64(p.w), kerntest.F64(p.b), kerntest.F64(p.dy)
	if !m.bias {
		b = nil
	}
	y = naive(p.n, p.i, p.o, x, w, b)
	dx, dw = make([]float64, p.n*p.i), make([]float64, p.o*p.i)
	for n := range p.n {
		for o := range p.o {
			g := dy[n*p.o+o]
			for i := range p.i {
				dx[n*p.i+i] += g * w[o*p.i+i]
				dw[o*p.i+i] += g * x[n*p.i+i]
			}
		}
	}
	if m.r != "" {
		for i := range y {
			y[i] += r[i]
		}
	}
	return y, dx, dw
}

// check computes on the device, twice, and holds every element against f64.
func (p problem) check(t *testing.T, c CUDA, s *cuda.Stream, m mode) {
	t.Helper()
	const bf = dtype.BF16
	up := func(x tensor.Tensor, dt dtype.DType) tensor.Tensor { return gputest.Upload(t, s, x, dt) }
	rnd := kerntest.Rand(uint64(p.n + p.o))
	rHost := gputest.BF16(kerntest.Normal(rnd, 1, p.n, p.o))
	xHost := gputest.BF16(kerntest.Normal(rnd, 1, p.n, p.i)) // what dx holds before
	wHost := gputest.BF16(kerntest.Normal(rnd, 1, p.o, p.i)) // what dw holds before
	x, w, dy := up(p.x, bf), up(p.w, bf), up(p.dy, bf)
	rBefore, dxBefore, dwBefore := up(rHost, bf), up(xHost, bf), up(wHost, m.grads)
	y, dx, dw := up(rHost, bf), up(xHost, bf), up(wHost, m.grads)
	var b, r tensor.Tensor
	if m.bias {
		b = up(p.b, bf)
		if m.shifted {
			b = gputest.Shifted(t, s, b)
		}
	}
	switch m.r {
	case "y":
		r = y
	case "r":
		r = rBefore
	}
	got := gputest.Twice(t, s, func() {
		if m.r == "y" {
			s.Copy(y.Buf, rBefore.Buf)
		}
		if m.add {
			s.Copy(dx.Buf, dxBefore.Buf)
			s.Copy(dw.Buf, dwBefore.Buf)
		}
		c.Linear(s, y, x, w, b, r)
		c.LinearBackwardX(s, dx, dy, w, m.add)
		c.LinearBackwardW(s, dw, dy, x, m.add)
	}, y, dx, dw)
	wantY, wantX, wantW := p.f64(m, kerntest.F64(rHost))
	if m.add {
		for i, v := range kerntest.F64(xHost) {
			wantX[i] += v
		}
		for i, v := range kerntest.F64(wHost) {
			wantW[i] += v
		}
	}
	// A CPU that rounds where the GPU does: the product to bf16, and again behind each
	// term that is added to it.
	emulated := func(v []float64, added ...[]float64) []float64 {
		out := make([]float64, len(v))
		for i := range v {
			x := v[i]
			for _, a := range added {
				x -= a[i%len(a)]
			}
			x = float64(dtype.BF16To(dtype.BF16From(float32(x))))
			for _, a := range added {
				x = float64(dtype.BF16To(dtype.BF16From(float32(x + a[i%len(a)]))))
			}
			out[i] = x
		}
		return out
	}
	var toY, toX, toW [][]float64
	if m.bias {
		toY = append(toY, kerntest.F64(p.b))
	}
	if m.r != "" {
		toY = append(toY, kerntest.F64(rHost))
	}
	if m.add {
		toX, toW = [][]float64{kerntest.F64(xHost)}, [][]float64{kerntest.F64(wHost)}
	}
	gputest.Compare(t, "y", got[0], wantY, emulated(wantY, toY...))
	gputest.Compare(t, "dx", got[1], wantX, emulated(wantX, toX...))
	if m.grads == bf {
		gputest.Compare(t, "dw", got[2], wantW, emulated(wantW, toW...))
	} else {
		gputest.Near(t, "dw", got[2], wantW, 1e-5) // sums in f32, not rounded
	}
}

var modes = []mode{
	{grads: dtype.BF16},
	{grads: dtype.F32, add: true, bias: true},
	{grads: dtype.BF16, add: true, bias: true, r: "y"},
	{grads: dtype.F32, bias: true, r: "r", shifted: true},
	{grads: dtype.BF16, r: "y"},
}

// Without a GPU: that the right matrices are multiplied, for a fake library computes
// from what the real one would be given.
func TestCUDAOnTheHost(t *testing.T) {
	c, s := newFake(t)
	for _, size := range sizes {
		for i, m := range modes {
			if size[0]*size[1]*size[2] > 1<<18 && i > 2 {
				continue // the fake is slow
			}
			t.Run(fmt.Sprintf("%v/%+v", size, m), func(t *testing.T) {
				rounded(size[0], size[1], size[2]).check(t, c, s, m)
			})
		}
	}
}

func TestCUDAAgainstCPU(t *testing.T) {
	c, _ := newCUDA(t)
	list := append([][3]int{{64, 63, 65}, {65, 64, 63}, {63, 65, 64}, {64, 768, 7}, {7, 8, 768}, {64, 896, 384},
		{5, 16, 50257}, {3, 50257, 16}, {256, 128, 128}}, sizes...)
	for _, size := range list {
		p := rounded(size[0], size[1], size[2])
		for _, m := range modes {
			t.Run(fmt.Sprintf("%v/%+v", size, m), func(t *testing.T) { p.check(t, c, newStream(t, c), m) })
		}
	}
}

// newStream is a stream for one case, so that its failure does not hide the others.
func newStream(t *testing.T, c CUDA) *cuda.Stream {
	t.Helper()
	s, err := c.env.Device.NewStream(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // the error is Wait's to report
	return nv.Stream(s)
}

func TestCUDABiasBackward(t *testing.T) {
	c, _ := newCUDA(t)
	for _, n := range []int{0, 1, 7, 63, 64, 65, 1000, 16384} {
		for _, o := range []int{1, 7, 8, 63, 65, 128, 768, 1152, 4864} {
			if n*o > 1<<23 {
				continue
			}
			dy := gputest.BF16(kerntest.Normal(kerntest.Rand(uint64(n+o)), 1, n, o))
			for _, grads := range []dtype.DType{dtype.BF16, dtype.F32} {
				for _, add := range []bool{false, true} {
					for _, shifted := range []bool{false, true} {
						t.Run(fmt.Sprintf("%dx%d/%v/add=%v/shifted=%v", n, o, grads, add, shifted), func(t *testing.T) {
							checkBias(t, c, newStream(t, c), dy, grads, add, shifted)
						})
					}
				}
			}
		}
	}
}

func checkBias(t *testing.T, c CUDA, s *cuda.Stream, dyHost tensor.Tensor, grads dtype.DType, add, shifted bool) {
	o := dyHost.Shape[1]
	dy := gputest.Upload(t, s, dyHost, dtype.BF16)
	if shifted {
		dy = gputest.Shifted(t, s, dy)
	}
	start := gputest.BF16(kerntest.Normal(kerntest.Rand(5), 1, o))
	before := gputest.Upload(t, s, start, grads)
	db := gputest.New(t, s, grads, o)
	got := gputest.Twice(t, s, func() {
		if add {
			s.Copy(db.Buf, before.Buf)
		}
		c.BiasBackward(s, db, dy, add)
	}, db)[0]
	want := make([]float64, o)
	if add {
		copy(want, kerntest.F64(start))
	}
	for i, v := range kerntest.F64(dyHost) {
		want[i%max(o, 1)] += v
	}
	if grads == dtype.F32 {
		gputest.Near(t, "db", got, want, 1e-5) // f32 sums of up to 16384
		return
	}
	emulated := make([]float64, o)
	for i, v := range want {
		emulated[i] = float64(dtype.BF16To(dtype.BF16From(float32(v))))
	}
	gputest.Compare(t, "db", got, want, emulated)
}

// The parts of a column sum cover the rows, are multiples of 16 rows, and fill the
// GPU where there are rows enough.
func TestColumnSumParts(t *testing.T) {
	c := CUDA{env: &nv.Env{SMs: 132}}
	for _, n := range []int{0, 1, 15, 16, 64, 65, 4096, 16384, 32768, 1 << 22} {
		for _, o := range []int{1, 128, 768, 896, 9728, 151936} {
			rows, parts := c.split(n, o)
			if n == 0 {
				if parts != 0 {
					t.Errorf("%d parts of no rows", parts)
				}
				continue
			}
			if rows%16 != 0 || rows*parts < n || rows*(parts-1) >= n {
				t.Errorf("%d rows of %d: %d parts of %d", n, o, parts, rows)
			}
			if blocks := parts * nv.Blocks(o, tile); n >= 16384 && o >= 768 && blocks < 132*3 || parts > 65535 {
				t.Errorf("%d rows of %d: %d blocks", n, o, blocks)
			}
		}
	}
}

func TestCUDARefuses(t *testing.T) {
	c, s := newFake(t)
	on := func(dt dtype.DType, shape ...int) tensor.Tensor { return gputest.New(t, s, dt, shape...) }
	b := func(shape ...int) tensor.Tensor { return on(dtype.BF16, shape...) }
	f := func(shape ...int) tensor.Tensor { return on(dtype.F32, shape...) }
	none := tensor.Tensor{}
	host := gputest.Download(t, s, b(2, 3))
	kerntest.Panics(t, func() { c.Linear(s, f(2, 4), f(2, 3), f(4, 3), none, none) }, "linear", "y is f32[2 4]", "want bf16 in device memory")
	kerntest.Panics(t, func() { c.Linear(s, b(2, 4), host, b(4, 3), none, none) }, "linear", "x is bf16[2 3] in host memory")
	kerntest.Panics(t, func() { c.Linear(s, b(2, 4), b(2, 3), b(4, 3), none, b(2, 3)) }, "linear", "r is bf16[2 3]")
	kerntest.Panics(t, func() { c.Linear(s, b(2, 4), b(2, 3), b(4, 5), none, none) }, "linear", "w is bf16[4 5]")
	kerntest.Panics(t, func() { c.LinearBackwardX(s, f(2, 3), b(2, 4), b(4, 3), false) }, "linear backward x", "w is bf16[4 3], want f32[4 3]")
	kerntest.Panics(t, func() { c.LinearBackwardW(s, on(dtype.F16, 4, 3), b(2, 4), b(2, 3), false) }, "linear backward w", "dw is f16[4 3]")
	kerntest.Panics(t, func() { c.BiasBackward(s, f(4), f(2, 4), false) }, "bias backward", "dy is f32[2 4]")
	kerntest.Panics(t, func() { c.BiasBackward(s, b(3), b(2, 4), false) }, "bias backward", "db is bf16[3]")
	kerntest.Panics(t, func() { c.Linear(kerntest.Stream(t), b(2, 4), b(2, 3), b(4, 3), none, none) }, "want a CUDA stream")
}
