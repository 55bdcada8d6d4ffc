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

// A group's lanes are a power of two, hold a head and are no more than they must be.
func TestLanesCoverAHead(t *testing.T) {
	for d := 1; d <= 1000; d++ {
		lanes, vectors := headLanes(d)
		switch {
		case vectors == 0:
			if lanes != 32 || d%8 == 0 && d <= 256 {
				t.Fatalf("D=%d: the plain kernel and %d lanes", d, lanes)
			}
		case lanes&(lanes-1) != 0 || lanes > 32 || lanes*8 < d || lanes > 1 && lanes*4 >= d:
			t.Fatalf("D=%d: %d lanes", d, lanes)
		}
	}
	x := make([]float32, 65) // of two addresses 4 bytes apart one is no multiple of 16
	if _, v := headLanes(64, kerntest.Of(x[:64], 64), kerntest.Of(x[1:], 64)); v != 0 {
		t.Error("an address that is no multiple of 16 bytes takes vectors")
	}
}

// onGPU makes both passes on the device, twice.
func (p qkProblem) onGPU(t *testing.T, c CUDA, s *cuda.Stream, h how) qkResults {
	up := func(x tensor.Tensor, dt dtype.DType) tensor.Tensor {
		y := gputest.Upload(t, s, x, dt)
		if h.shifted {
			y = gputest.Shifted(t, s, y)
		}
		return y
	}
	x, wq, wk, dy := up(p.x, dtype.BF16), up(p.wq, dtype.BF16), up(p.wk, dtype.BF16), up(p.dy, dtype.BF16)
	y, dx := up(kerntest.New(p.n, p.all, p.d), dtype.BF16), up(kerntest.New(p.n, p.all, p.d), dtype.BF16)
	outs := []tensor.Tensor{y, dx}
	var before, dwq, dwk tensor.Tensor
	if h.grads != dtype.Invalid {
		full := kerntest.New(p.d)
		for i := range full.F32() {
			full.F32()[i] = start
		}
		before, dwq, dwk = up(full, h.grads), up(full, h.grads), up(full, h.grads)
		outs = append(outs, dwq, dwk)
	}
	got := gputest.Twice(t, s, func() {
		s.Copy(dx.Buf, dy.Buf)
		if h.add {
			s.Copy(dwq.Buf, before.Buf)
			s.Copy(dwk.Buf, before.Buf)
		}
		c.QKNorm(s, y, x, wq, wk, p.queries, eps)
		c.QKNormBackward(s, dx, dwq, dwk, x, wq, wk, p.queries, eps, h.add, h.add)
	}, outs...)
	r := qkResults{y: got[0], dx: got[1]}
	if len(got) > 2 {
		r.dwq, r.dwk = got[2], got[3]
	}
	return r
}

// With the blocks of one multiprocessor alone, a group of lanes walks many heads.
func TestCUDAQKNormAgainstCPU(t *testing.T) {
	all, s := newCUDA(t)
	one, _ := newCUDA(t)
	one.env.SMs = 1
	for _, heads := range [][2]int{{1, 1}, {6, 2}, {16, 8}, {7, 1}} {
		for _, d := range []int{1, 6, 8, 16, 63, 64, 80, 96, 128, 200, 256, 264} {
			for _, rows := range []int{0, 1, 5, 700} {
				if rows == 700 && d > 128 {
					continue
				}
				p := newQK(rows, heads[0], heads[1], d)
				for _, x := range []tensor.Tensor{p.x, p.wq, p.wk, p.dy} {
					gputest.BF16(x)
				}
				emulated := func(x tensor.Tensor) []float64 { return kerntest.F64(gputest.BF16(kerntest.Clone(x))) }
				for _, h := range []how{{grads: dtype.BF16}, {grads: dtype.F32, add: true}, {}, {grads: dtype.BF16, add: true, shifted: true}} {
					t.Run(fmt.Sprintf("%v,%dx%d,%+v", heads, rows, d, h), func(t *testing.T) {
						want, cpu := p.truth(), p.run(t, 1, h.add, h.add, start)
						if h.add {
							for i := range want.dwq {
								want.dwq[i] += start
								want.dwk[i] += start
							}
						}
						for _, c := range []CUDA{all, one} {
							got := p.onGPU(t, c, s, h)
							gputest.Compare(t, "y", got.y, want.y, emulated(cpu.y))
							gputest.Compare(t, "dx", got.dx, want.dx, emulated(cpu.dx))
							switch h.grads {
							case dtype.BF16:
								gputest.Compare(t, "dwq", got.dwq, want.dwq, emulated(cpu.dwq))
								gputest.Compare(t, "dwk", got.dwk, want.dwk, emulated(cpu.dwk))
							case dtype.F32:
								gputest.Near(t, "dwq", got.dwq, want.dwq, 1e-5)
								gputest.Near(t, "dwk", got.dwk, want.dwk, 1e-5)
							}
						}
					})
				}
			}
		}
	}
}

// A NaN of a query stays in its head of y and dx, and out of the keys' gradient.
func TestCUDAQKNormSpreadsNaN(t *testing.T) {
	c, s := newCUDA(t)
	for _, d := range []int{6, 64} {
		p := newQK(5, 2, 1, d)
		const head = 2*4 + 1 // the second query of the third row
		p.x.F32()[head*d+2] = float32(math.NaN())
		got := p.onGPU(t, c, s, how{grads: dtype.F32})
		for name, x := range map[string]tensor.Tensor{"y": got.y, "dx": got.dx} {
			for i, v := range gputest.Floats(x) {
				if math.IsNaN(v) != (i/d == head) {
					t.Fatalf("D=%d: %s[%d,%d] = %v", d, name, i/d, i%d, v)
				}
			}
		}
		for i, v := range gputest.Floats(got.dwk) {
			if math.IsNaN(v) {
				t.Errorf("D=%d: dwk[%d] is NaN", d, i)
			}
		}
	}
}

func TestCUDAQKNormRefuses(t *testing.T) {
	c, s := newCUDA(t)
	b := func(shape ...int) tensor.Tensor { return gputest.New(t, s, dtype.BF16, shape...) }
	f := func(shape ...int) tensor.Tensor { return gputest.New(t, s, dtype.F32, shape...) }
	kerntest.Panics(t, func() { c.QKNorm(s, f(2, 4, 8), f(2, 4, 8), f(8), f(8), 2, eps) }, "qk norm", "wq is f32[8]", "bf16[8]")
	x := b(2, 4, 8)
	kerntest.Panics(t, func() { c.QKNorm(s, x, x, b(8), b(8), 2, eps) }, "y is x")
}

// BenchmarkCUDAQKNorm counts each tensor's bytes once; the copy counts its own so too.
func BenchmarkCUDAQKNorm(b *testing.B) {
	const rows, queries, keys, d = 16384, 16, 8, 128 // Qwen3-0.6B
	const size = 2 * rows * d                        // bytes of a head of every row
	type set struct{ x, y, w, dw tensor.Tensor }
	for name, k := range map[string]struct {
		heads int // read or written
		run   func(c CUDA, s *cuda.Stream, t set)
	}{
		"forward": {2 * (queries + 2*keys), func(c CUDA, s *cuda.Stream, t set) { c.QKNorm(s, t.y, t.x, t.w, t.w, queries, eps) }},
		"backward": {3 * (queries + keys), func(c CUDA, s *cuda.Stream, t set) {
			c.QKNormBackward(s, t.y, t.dw, t.dw, t.x, t.w, t.w, queries, eps, false, true)
		}},
	} {
		b.Run(name, func(b *testing.B) {
			c, s := newCUDA(b)
			sets := make([]set, gputest.Sets(2*size*(queries+2*keys)))
			normal := func(shape ...int) tensor.Tensor { return gputest.Noise(b, s, 1, dtype.BF16, shape...) }
			for i := range sets {
				sets[i] = set{normal(rows, queries+2*keys, d), normal(rows, queries+2*keys, d), normal(d), normal(d)}
			}
			gputest.Bandwidth(b, s, k.heads*size, func(i int) { k.run(c, s, sets[i%len(sets)]) })
		})
	}
}
