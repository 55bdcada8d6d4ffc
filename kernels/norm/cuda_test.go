package norm

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Every vector of a row has exactly one thread, and the threads are whole warps.
func TestVariantCoversARow(t *testing.T) {
	for c := 1; c <= 20000; c++ {
		vectors, threads := variant(c)
		if threads < 1 || threads > 1024 || threads%32 != 0 {
			t.Fatalf("C=%d: %d threads", c, threads)
		}
		switch {
		case vectors == 0:
			if c%8 == 0 && c <= 8192 {
				t.Fatalf("C=%d takes the plain kernel", c)
			}
		case vectors > 2 || c%8 != 0 || threads > 512:
			t.Fatalf("C=%d: %d vectors of %d threads", c, vectors, threads)
		default:
			if n := vectors * threads * 8; n < c || n-c >= 8*32*vectors {
				t.Fatalf("C=%d: %d vectors of %d threads hold %d", c, vectors, threads, n)
			}
		}
	}
	x := make([]float32, 17) // of two addresses 4 bytes apart one is no multiple of 16
	if v, _ := variant(64, kerntest.Of(x[:16], 16), kerntest.Of(x[1:], 16)); v != 0 {
		t.Errorf("an address that is no multiple of 16 bytes takes %d vectors", v)
	}
}

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// rounded is a problem whose tensors bf16 holds exactly.
func rounded(n, c int, layer bool) problem {
	p := newProblem(n, c, layer)
	for _, x := range []tensor.Tensor{p.x, p.w, p.dy} {
		gputest.BF16(x)
	}
	if layer {
		gputest.BF16(p.b)
	}
	return p
}

// how the passes are run: the type of dw and db (Invalid: none), what the outputs
// hold before, and where the tensors lie.
type how struct {
	grads                 dtype.DType
	add, inPlace, shifted bool
}

const start = 0.75 // what is added to

// onGPU makes both passes on the device, twice.
func (p problem) onGPU(t *testing.T, c CUDA, s *cuda.Stream, h how) results {
	up := func(x tensor.Tensor, dt dtype.DType) tensor.Tensor {
		y := gputest.Upload(t, s, x, dt)
		if h.shifted {
			y = gputest.Shifted(t, s, y)
		}
		return y
	}
	same := func(dt dtype.DType, shape ...int) tensor.Tensor { // holds start
		x := kerntest.New(shape...)
		for i := range x.F32() {
			x.F32()[i] = start
		}
		return up(x, dt)
	}
	fresh := func(x tensor.Tensor) tensor.Tensor {
		return up(kerntest.New(x.Shape...), x.DType)
	}
	x, w, dy := up(p.x, dtype.BF16), up(p.w, dtype.BF16), up(p.dy, dtype.BF16)
	dxBefore := same(dtype.BF16, p.n, p.c)
	if h.inPlace {
		dxBefore = dy
	}
	y, dx := fresh(x), fresh(dy)
	mean, rstd := up(kerntest.New(p.n), dtype.F32), up(kerntest.New(p.n), dtype.F32)
	outs := []tensor.Tensor{y, rstd, dx}
	var b, dw, db, dwBefore tensor.Tensor
	if h.grads != dtype.Invalid {
		dwBefore = same(h.grads, p.c)
		dw = fresh(dwBefore)
		outs = append(outs, dw)
	}
	if p.layer {
		b = up(p.b, dtype.BF16)
		outs = append(outs, mean)
		if h.grads != dtype.Invalid {
			db = fresh(dwBefore)
			outs = append(outs, db)
		}
	}
	got := gputest.Twice(t, s, func() {
		s.Copy(dx.Buf, dxBefore.Buf)
		for _, d := range []tensor.Tensor{dw, db} {
			if !d.None() && h.add {
				s.Copy(d.Buf, dwBefore.Buf)
			}
		}
		from := dy
		if h.inPlace {
			from = dx
		}
		if p.layer {
			c.LayerNorm(s, y, mean, rstd, x, w, b, eps)
			c.LayerNormBackward(s, dx, dw, db, from, x, w, mean, rstd, h.add, h.add)
		} else {
			c.RMSNorm(s, y, rstd, x, w, eps)
			c.RMSNormBackward(s, dx, dw, from, x, w, rstd, h.add, h.add)
		}
	}, outs...)
	r := results{y: got[0], rstd: got[1], dx: got[2]}
	got = got[3:]
	if !dw.None() {
		r.dw, got = got[0], got[1:]
	}
	if p.layer {
		r.mean = got[0]
		if !db.None() {
			r.db = got[1]
		}
	}
	return r
}

// truth is what the passes should give: in f64, and as the CPU's results rounded to
// bf16, which measure the error.
type truth struct{ y, mean, rstd, dx, dw, db, emulatedY, emulatedDX, emulatedDW, emulatedDB []float64 }

func (p problem) truth(t *testing.T, add bool) (r truth) {
	dy, x, w, b := p.f64()
	r.y, r.mean, r.rstd = naive(p.c, x, w, b)
	r.dx, r.dw, r.db = naiveBackward(p.c, p.layer, dy, x, w, r.mean, r.rstd)
	if add {
		for _, v := range [][]float64{r.dx, r.dw, r.db} {
			for i := range v {
				v[i] += start
			}
		}
	}
	cpu := p.run(t, 1, false, add, start)
	emulated := func(x tensor.Tensor) []float64 { return kerntest.F64(gputest.BF16(x)) }
	r.emulatedY, r.emulatedDX, r.emulatedDW, r.emulatedDB = emulated(cpu.y), emulated(cpu.dx), emulated(cpu.dw), emulated(cpu.db)
	return r
}

func (r truth) compare(t *testing.T, got results) {
	gputest.Compare(t, "y", got.y, r.y, r.emulatedY)
	gputest.Compare(t, "dx", got.dx, r.dx, r.emulatedDX)
	// f32 sums of up to 9000 terms.
	gputest.Near(t, "rstd", got.rstd, r.rstd, 3e-6)
	if !got.mean.None() {
		gputest.Near(t, "mean", got.mean, r.mean, 3e-6)
	}
	grad := func(what string, got tensor.Tensor, want, emulated []float64) {
		switch got.DType {
		case dtype.BF16:
			gputest.Compare(t, what, got, want, emulated)
		case dtype.F32:
			gputest.Near(t, what, got, want, 1e-5)
		}
	}
	grad("dw", got.dw, r.dw, r.emulatedDW)
	grad("db", got.db, r.db, r.emulatedDB)
}

// With the blocks of one multiprocessor alone, a block walks many rows.
func TestCUDANormAgainstCPU(t *testing.T) {
	all, s := newCUDA(t)
	one, _ := newCUDA(t)
	one.env.SMs = 1
	for _, channels := range []int{1, 7, 8, 64, 768, 896, 1536, 3584, 4104, 8192, 8960} {
		for _, rows := range []int{1, 63, 64, 65, 1000} {
			if rows == 1000 && channels > 896 {
				continue
			}
			for _, layer := range []bool{false, true} {
				t.Run(fmt.Sprintf("layer=%v,%dx%d", layer, rows, channels), func(t *testing.T) {
					p := rounded(rows, channels, layer)
					want := map[bool]truth{false: p.truth(t, false), true: p.truth(t, true)}
					for _, h := range []how{
						{grads: dtype.BF16},
						{grads: dtype.F32, add: true},
						{inPlace: true},
						{grads: dtype.BF16, add: true, shifted: true},
					} {
						t.Run(fmt.Sprintf("%+v", h), func(t *testing.T) {
							want[h.add].compare(t, p.onGPU(t, all, s, h))
							if rows > 1 {
								want[h.add].compare(t, p.onGPU(t, one, s, h))
							}
						})
					}
				})
			}
		}
	}
}

// A NaN stays in its row of y and dx, and reaches its column of dw, or all: x's
// NaN makes the row's rstd one.
func TestCUDANormSpreadsNaN(t *testing.T) {
	c, s := newCUDA(t)
	for _, layer := range []bool{false, true} {
		for _, channels := range []int{7, 64} {
			p := rounded(5, channels, layer)
			p.x.F32()[3*channels+2] = float32(math.NaN())
			got := p.onGPU(t, c, s, how{grads: dtype.F32})
			for name, x := range map[string]tensor.Tensor{"y": got.y, "dx": got.dx} {
				for i, v := range gputest.Floats(x) {
					if math.IsNaN(v) != (i/channels == 3) {
						t.Fatalf("layer=%v C=%d: %s[%d,%d] = %v", layer, channels, name, i/channels, i%channels, v)
					}
				}
			}
			for i, v := range gputest.Floats(got.dw) {
				if !math.IsNaN(v) {
					t.Errorf("layer=%v C=%d: dw[%d] = %v", layer, channels, i, v)
				}
			}
		}
	}
}

// No rows: gradients are zero, or stay where they are added to.
func TestCUDANormOfNoRows(t *testing.T) {
	c, s := newCUDA(t)
	for _, add := range []bool{false, true} {
		p := rounded(0, 8, true)
		got := p.onGPU(t, c, s, how{grads: dtype.BF16, add: add})
		for i, v := range append(gputest.Floats(got.dw), gputest.Floats(got.db)...) {
			if want := map[bool]float64{true: start}[add]; v != want {
				t.Errorf("add=%v: [%d] = %v, want %v", add, i, v, want)
			}
		}
	}
}

func TestCUDANormRefuses(t *testing.T) {
	c, s := newCUDA(t)
	b := func(shape ...int) tensor.Tensor { return gputest.New(t, s, dtype.BF16, shape...) }
	f := func(shape ...int) tensor.Tensor { return gputest.New(t, s, dtype.F32, shape...) }
	kerntest.Panics(t, func() { c.RMSNorm(s, f(2, 8), f(2), f(2, 8), f(8), eps) }, "rmsnorm", "w is f32[8]", "bf16[8]")
	kerntest.Panics(t, func() { c.LayerNorm(s, b(2, 8), f(2), f(2), b(2, 8), b(8), tensor.Tensor{}, eps) }, "layernorm", "b is none")
	kerntest.Panics(t, func() {
		c.LayerNormBackward(s, b(2, 8), b(8), f(8), b(2, 8), b(2, 8), b(8), f(2), f(2), false, false)
	}, "layernorm backward", "dw is bf16[8]", "db is f32[8]")
	dx := b(2, 8)
	kerntest.Panics(t, func() { c.RMSNormBackward(s, dx, b(8), dx, b(2, 8), b(8), f(2), true, false) }, "dx is dy")
}

// BenchmarkCUDANorm counts each tensor's bytes once; the copy counts its own so too.
func BenchmarkCUDANorm(b *testing.B) {
	const rows = 16384
	for _, channels := range []int{768, 896, 1536, 3584} {
		for _, layer := range []bool{false, true} {
			name := map[bool]string{false: "rmsnorm", true: "layernorm"}[layer]
			size := 2 * rows * channels // bytes of a tensor
			for _, k := range []struct {
				name    string
				tensors int
				run     func(c CUDA, s *cuda.Stream, t normSet)
			}{
				{"forward", 2, func(c CUDA, s *cuda.Stream, t normSet) {
					if layer {
						c.LayerNorm(s, t.dx, t.mean, t.rstd, t.x, t.w, t.w, eps)
					} else {
						c.RMSNorm(s, t.dx, t.rstd, t.x, t.w, eps)
					}
				}},
				{"backward", 3, func(c CUDA, s *cuda.Stream, t normSet) { t.backward(c, s, layer, false) }},
				{"backward-add", 4, func(c CUDA, s *cuda.Stream, t normSet) { t.backward(c, s, layer, true) }},
			} {
				b.Run(fmt.Sprintf("%s/%s/%d", name, k.name, channels), func(b *testing.B) {
					c, s := newCUDA(b)
					sets := make([]normSet, gputest.Sets(3*size))
					for i := range sets {
						sets[i] = newNormSet(b, s, rows, channels)
					}
					gputest.Bandwidth(b, s, k.tensors*size, func(i int) { k.run(c, s, sets[i%len(sets)]) })
				})
			}
		}
	}
}

type normSet struct{ x, dy, dx, w, dw, db, mean, rstd tensor.Tensor }

func newNormSet(b *testing.B, s *cuda.Stream, rows, channels int) normSet {
	normal := func(dt dtype.DType, shape ...int) tensor.Tensor { return gputest.Noise(b, s, 1, dt, shape...) }
	return normSet{
		x: normal(dtype.BF16, rows, channels), dy: normal(dtype.BF16, rows, channels), dx: normal(dtype.BF16, rows, channels),
		w: normal(dtype.BF16, channels), dw: normal(dtype.BF16, channels), db: normal(dtype.BF16, channels),
		mean: normal(dtype.F32, rows), rstd: normal(dtype.F32, rows),
	}
}

func (t normSet) backward(c CUDA, s *cuda.Stream, layer, add bool) {
	if layer {
		c.LayerNormBackward(s, t.dx, t.dw, t.db, t.dy, t.x, t.w, t.mean, t.rstd, add, false)
	} else {
		c.RMSNormBackward(s, t.dx, t.dw, t.dy, t.x, t.w, t.rstd, add, false)
	}
}
