package elementwise

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

func newCUDA(t testing.TB) (CUDA, *cuda.Stream) {
	env, s := gputest.Env(t)
	c, err := NewCUDA(env)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

var floats = []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}

// hard is n f32 numbers: every half and bfloat16, the middles between neighbours and
// the f32 next to these, infinities and NaN, and after them random ones.
func hard(n int) tensor.Tensor {
	var x []float32
	for h := range 1 << 16 {
		for _, to := range []func(uint16) float32{dtype.BF16To, dtype.F16To} {
			a, b := to(uint16(h)), to(uint16(h+1))
			mid := float32((float64(a) + float64(b)) / 2)
			x = append(x, a, mid, math.Nextafter32(mid, a), math.Nextafter32(mid, b))
		}
	}
	r := kerntest.Rand(uint64(n))
	for len(x) < n {
		x = append(x, float32(r.NormFloat64()))
	}
	return kerntest.Of(x[:n], n)
}

// Conversions give the CPU's bits, but for the bits of a NaN.
func TestCUDACopyConverts(t *testing.T) {
	c, s := newCUDA(t)
	cpu, on := newCPU(t, 2)
	for _, n := range []int{1, 3, 4, 5, 1023, 1024, 1025, 1 << 20} {
		for _, from := range floats {
			x := alloc(t, from, n)
			cpu.Copy(on, x, hard(n))
			for _, to := range floats {
				want := alloc(t, to, n)
				cpu.Copy(on, want, x)
				kerntest.Wait(t, on)
				for _, shifted := range []bool{false, true} {
					up, y := gputest.Upload(t, s, x, from), gputest.New(t, s, to, n)
					if shifted {
						up, y = gputest.Shifted(t, s, up), gputest.Shifted(t, s, y)
					}
					got := gputest.Twice(t, s, func() { c.Copy(s, y, up) }, y)[0]
					size, wrong := to.Size(), 0
					g, w := gputest.Floats(got), gputest.Floats(want)
					for i := range g {
						same := string(got.Buf.Bytes()[i*size:(i+1)*size]) == string(want.Buf.Bytes()[i*size:(i+1)*size])
						if !same && !(math.IsNaN(g[i]) && math.IsNaN(w[i])) {
							if wrong++; wrong < 5 {
								t.Errorf("%s to %s, n=%d, shifted=%v: [%d] of %v is %v, want %v", from, to, n, shifted, i, gputest.Floats(x)[i], g[i], w[i])
							}
						}
					}
				}
			}
		}
	}
}

func TestCUDACopyKeepsBytesAndZeroClears(t *testing.T) {
	c, s := newCUDA(t)
	for _, dt := range dtype.All {
		for _, n := range []int{0, 3, 100001} {
			x := alloc(t, dt, n)
			for i := range x.Buf.Bytes() {
				x.Buf.Bytes()[i] = byte(i*7 + 1)
			}
			y, z := gputest.New(t, s, dt, n), gputest.New(t, s, dt, n)
			up := gputest.Upload(t, s, x, dt)
			got := gputest.Twice(t, s, func() { c.Copy(s, y, up); c.Zero(s, z) }, y, z)
			kerntest.Equal(t, fmt.Sprint("copy of ", dt), x, got[0])
			kerntest.Equal(t, fmt.Sprint("zero of ", dt), alloc(t, dt, n), got[1])
		}
	}
	host := alloc(t, dtype.F32, 5)
	c.Copy(s, host, gputest.Upload(t, s, kerntest.Of([]float32{1, 2, 3, 4, 5}, 5), dtype.F32))
	kerntest.Wait(t, s)
	kerntest.Equal(t, "copy to the host", kerntest.Of([]float32{1, 2, 3, 4, 5}, 5), host)
}

// A tensor of more than 2^31 elements is converted to its end.
func TestCUDACopyBeyond31Bits(t *testing.T) {
	const n = 1<<31 + 1<<20 + 5
	gputest.NeedMemory(t, 6*n+1<<30)
	c, s := newCUDA(t)
	x, y := gputest.New(t, s, dtype.F32, n), gputest.New(t, s, dtype.BF16, n)
	s.Fill32(x.Buf, math.Float32bits(3))
	last := kerntest.Normal(kerntest.Rand(1), 1, 64)
	s.Copy(x.Rows(n-64, n).Buf, gputest.Upload(t, s, last, dtype.F32).Buf)
	c.Copy(s, y, x)
	for _, at := range []int{0, 1 << 30, 1<<31 - 32, 1 << 31, n - 128, n - 64} {
		got := gputest.Floats(gputest.Download(t, s, y.Rows(at, at+64)))
		for i, v := range got {
			want := float32(3)
			if at == n-64 {
				want = dtype.BF16To(dtype.BF16From(last.F32()[i]))
			}
			if v != float64(want) {
				t.Fatalf("[%d] = %v, want %v", at+i, v, want)
			}
		}
	}
}

func TestCUDACopyRefuses(t *testing.T) {
	c, s := newCUDA(t)
	f := gputest.New(t, s, dtype.F32, 4)
	kerntest.Panics(t, func() { c.Copy(s, gputest.New(t, s, dtype.I32, 4), f) }, "copy", "cannot convert x f32[4] to y i32[4]")
	kerntest.Panics(t, func() { c.Zero(s, tensor.Tensor{}) }, "zero", "none")
	on := kerntest.Stream(t)
	kerntest.Panics(t, func() { c.Zero(on, f) }, "CUDA stream")
}

func BenchmarkCUDACopy(b *testing.B) {
	c, s := newCUDA(b)
	const n = 1 << 28
	f, h := gputest.Noise(b, s, 1, dtype.F32, n), gputest.Noise(b, s, 1, dtype.BF16, n)
	b.Run("f32-to-bf16", func(b *testing.B) { gputest.Bandwidth(b, s, 6*n, func(int) { c.Copy(s, h, f) }) })
	b.Run("bf16-to-f32", func(b *testing.B) { gputest.Bandwidth(b, s, 6*n, func(int) { c.Copy(s, f, h) }) })
	b.Run("f32-to-f32", func(b *testing.B) {
		half := n / 2
		gputest.Bandwidth(b, s, 8*half, func(int) { c.Copy(s, f.Rows(0, half), f.Rows(half, n)) })
	})
	b.Run("zero", func(b *testing.B) { gputest.Bandwidth(b, s, 4*n, func(int) { c.Zero(s, f) }) })
}
