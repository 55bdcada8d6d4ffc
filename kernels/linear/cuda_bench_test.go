package linear

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// peak is what the data sheet of H100 and H200 gives for dense bf16, in TFLOP/s.
const peak = 989.4

// layer is a product of a model: N rows, I inputs, O outputs, and what the model
// asks for beside.
type layer struct {
	model, name string
	n, i, o     int
	bias, plus  bool
}

func layers() []layer {
	var list []layer
	for _, m := range []struct {
		name                       string
		tokens, head               int
		hidden, qkv, up, down, voc int // up is both halves of SwiGLU's input, down its output
		gpt                        bool
	}{
		{"gpt2-124M", 32768, 2048, 768, 2304, 3072, 3072, 50304, true},
		{"qwen-0.5B", 16384, 2048, 896, 1152, 9728, 4864, 151936, false},
		{"qwen-1.5B", 16384, 2048, 1536, 2048, 17920, 8960, 151936, false},
	} {
		list = append(list,
			layer{m.name, "qkv", m.tokens, m.hidden, m.qkv, true, false},
			layer{m.name, "o", m.tokens, m.hidden, m.hidden, m.gpt, true},
			layer{m.name, "up", m.tokens, m.hidden, m.up, m.gpt, false},
			layer{m.name, "down", m.tokens, m.down, m.hidden, m.gpt, true},
			layer{m.name, "head", m.head, m.hidden, m.voc, false, false},
		)
	}
	return list
}

// random is a tensor of random numbers: 1 MiB of them, over and over, for the speed
// of a GPU depends on the bits that it moves.
func random(b *testing.B, s *cuda.Stream, dt dtype.DType, shape ...int) tensor.Tensor {
	x := gputest.New(b, s, dt, shape...)
	seed := gputest.Upload(b, s, kerntest.Normal(kerntest.Rand(1), 1, 1<<20/dt.Size()-8), dt)
	n := min(seed.Buf.Len(), x.Buf.Len())
	s.Copy(x.Buf.Slice(0, n), seed.Buf.Slice(0, n))
	for n < x.Buf.Len() {
		more := min(n, x.Buf.Len()-n)
		s.Copy(x.Buf.Slice(n, n+more), x.Buf.Slice(0, more))
		n += more
	}
	return x
}

// BenchmarkCUDALinear gives TFLOP/s, and their share of the peak, of the products of
// models in training. The first call of each is timed apart, as plan-ms: it chooses
// the algorithm, which is logged.
func BenchmarkCUDALinear(b *testing.B) {
	const bf, f32 = dtype.BF16, dtype.F32
	for _, l := range layers() {
		for _, k := range []struct {
			name string
			make func(b *testing.B, c CUDA, s *cuda.Stream) func()
		}{
			{"forward", func(b *testing.B, c CUDA, s *cuda.Stream) func() {
				y, x, w := random(b, s, bf, l.n, l.o), random(b, s, bf, l.n, l.i), random(b, s, bf, l.o, l.i)
				var bias, r tensor.Tensor
				if l.bias {
					bias = random(b, s, bf, l.o)
				}
				if l.plus {
					r = random(b, s, bf, l.n, l.o)
				}
				return func() { c.Linear(s, y, x, w, bias, r) }
			}},
			{"dx", func(b *testing.B, c CUDA, s *cuda.Stream) func() {
				dx, dy, w := random(b, s, bf, l.n, l.i), random(b, s, bf, l.n, l.o), random(b, s, bf, l.o, l.i)
				return func() { c.LinearBackwardX(s, dx, dy, w, false) }
			}},
			{"dw-bf16", func(b *testing.B, c CUDA, s *cuda.Stream) func() {
				dw, dy, x := random(b, s, bf, l.o, l.i), random(b, s, bf, l.n, l.o), random(b, s, bf, l.n, l.i)
				return func() { c.LinearBackwardW(s, dw, dy, x, false) }
			}},
			{"dw-f32-add", func(b *testing.B, c CUDA, s *cuda.Stream) func() {
				dw, dy, x := random(b, s, f32, l.o, l.i), random(b, s, bf, l.n, l.o), random(b, s, bf, l.n, l.i)
				return func() { c.LinearBackwardW(s, dw, dy, x, true) }
			}},
		} {
			b.Run(fmt.Sprintf("%s/%s-%dx%dx%d/%s", l.model, l.name, l.n, l.i, l.o, k.name), func(b *testing.B) {
				b.Setenv("XDG_CACHE_HOME", b.TempDir()) // the choice is made here and now
				c, s := newCUDA(b)
				run := k.make(b, c, s)
				from := time.Now()
				run()
				wait(b, s)
				plan := time.Since(from)
				for range 10 {
					run()
				}
				wait(b, s)
				first := s.Record()
				for b.Loop() {
					run()
				}
				last := s.Record()
				wait(b, s)
				took, err := last.Since(first)
				if err != nil {
					b.Fatal(err)
				}
				each := took.Seconds() / float64(b.N)
				rate := 2 * float64(l.n) * float64(l.i) * float64(l.o) / each / 1e12
				b.ReportMetric(each*1e9, "ns/op")
				b.ReportMetric(rate, "TFLOP/s")
				b.ReportMetric(100*rate/peak, "%peak")
				b.ReportMetric(float64(plan.Milliseconds()), "plan-ms")
				for _, choice := range c.Products().Choices() {
					b.Logf("%s: %s", choice.Product, choice.Algorithm)
				}
			})
		}
	}
}

func wait(b *testing.B, s *cuda.Stream) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := s.Synchronize(ctx); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCUDABias gives GB/s of reading dy, all that a column sum has to move.
func BenchmarkCUDABias(b *testing.B) {
	for _, size := range [][2]int{{32768, 768}, {32768, 2304}, {32768, 3072}, {16384, 896}, {16384, 1152}, {16384, 4864}, {16384, 9728}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			c, s := newCUDA(b)
			bytes := 2 * size[0] * size[1]
			db := gputest.New(b, s, dtype.BF16, size[1])
			dys := make([]tensor.Tensor, gputest.Sets(bytes))
			for i := range dys {
				dys[i] = random(b, s, dtype.BF16, size[0], size[1])
			}
			gputest.Bandwidth(b, s, bytes, func(i int) { c.BiasBackward(s, db, dys[i%len(dys)], false) })
		})
	}
}

// BenchmarkCUDALaunch is the host's time to enqueue a product whose plan is made.
func BenchmarkCUDALaunch(b *testing.B) {
	c, s := newCUDA(b)
	y, x, w, bias := random(b, s, dtype.BF16, 64, 64), random(b, s, dtype.BF16, 64, 64), random(b, s, dtype.BF16, 64, 64), random(b, s, dtype.BF16, 64)
	c.Linear(s, y, x, w, bias, y)
	wait(b, s)
	b.ReportAllocs()
	for b.Loop() {
		c.Linear(s, y, x, w, bias, y)
	}
	wait(b, s)
}
