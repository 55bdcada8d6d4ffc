package attention

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

func newRotary(t testing.TB) (Rotary, *cuda.Stream) {
	env, s := gputest.Env(t)
	r, err := NewRoPE(env)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

// angles is the tables of random angles, [p, half].
func angles(seed uint64, p, half int) (cos, sin tensor.Tensor) {
	angle := kerntest.Normal(kerntest.Rand(seed), 3, p, half).F32()
	cos, sin = kerntest.New(p, half), kerntest.New(p, half)
	for i, a := range angle {
		cos.F32()[i], sin.F32()[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
	}
	return cos, sin
}

// turned is x after RoPE, in f64.
func turned(x, cos, sin tensor.Tensor, heads, pos int, inverse bool) []float64 {
	t, e, d := x.Shape[1], x.Shape[2], x.Shape[3]
	out, half := kerntest.F64(x), d/2
	for row := range len(out) / (e * d) {
		for h := range heads {
			head := out[(row*e+h)*d:][:d]
			for i := range half {
				at := (pos+row%t)*half + i
				angle := complex(float64(cos.F32()[at]), float64(sin.F32()[at]))
				if inverse {
					angle = complex(real(angle), -imag(angle))
				}
				y := complex(head[i], head[i+half]) * angle
				head[i], head[i+half] = real(y), imag(y)
			}
		}
	}
	return out
}

func TestCUDARoPE(t *testing.T) {
	r, s := newRotary(t)
	for _, size := range [][5]int{ // B, T, E, heads, D
		{1, 1, 3, 2, 64}, {2, 65, 18, 16, 64}, {1, 63, 4, 2, 128}, {1, 17, 16, 14, 128}, {2, 5, 3, 1, 6}, {1, 7, 2, 2, 2},
		{1, 9, 5, 3, 80}, {1, 3, 2, 2, 192}, {1, 4, 2, 1, 20}, {1, 5, 3, 2, 512}, {1, 6, 2, 0, 64}, {0, 3, 2, 1, 64},
	} {
		b, n, e, heads, d := size[0], size[1], size[2], size[3], size[4]
		for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
			for _, pos := range []int{0, 7} {
				cos, sin := angles(uint64(d), n+pos+2, d/2)
				x := kerntest.Normal(kerntest.Rand(uint64(n)), 1, b, n, e, d)
				if dt == dtype.BF16 {
					gputest.BF16(x)
				}
				for _, inverse := range []bool{false, true} {
					want := turned(x, cos, sin, heads, pos, inverse)
					c, on := newCPU(t, 1, "gonum")
					emulated := kerntest.Clone(x)
					c.RoPE(on, emulated, cos, sin, heads, pos, inverse)
					kerntest.Wait(t, on)
					for _, shifted := range []bool{false, true} {
						what := fmt.Sprintf("%d of %d heads from %d, inverse=%v, shifted=%v:", heads, e, pos, inverse, shifted)
						from, y := gputest.Upload(t, s, x, dt), gputest.New(t, s, dt, b, n, e, d)
						if shifted {
							y = gputest.Shifted(t, s, y)
						}
						cosUp, sinUp := gputest.Upload(t, s, cos, dtype.F32), gputest.Upload(t, s, sin, dtype.F32)
						got := gputest.Twice(t, s, func() {
							s.Copy(y.Buf, from.Buf)
							r.RoPE(s, y, cosUp, sinUp, heads, pos, inverse)
						}, y)[0]
						if dt == dtype.BF16 {
							gputest.Compare(t, what, got, want, kerntest.F64(gputest.BF16(kerntest.Clone(emulated))))
						} else {
							gputest.Near(t, what, got, want, 3e-7)
						}
						for i, v := range gputest.Floats(got) {
							if i/d%e >= heads && v != float64(x.F32()[i]) {
								t.Errorf("%s [%d] is %v in a head that does not turn, was %v", what, i, v, x.F32()[i])
								break
							}
						}
					}
				}
			}
		}
	}
}

// Rows behind the 2^31st element turn as the first ones do.
func TestCUDARoPEBeyond31Bits(t *testing.T) {
	const e, heads, d, last = 128, 100, 128, 8
	const n = 1<<31/(e*d) + 64
	gputest.NeedMemory(t, 2*n*e*d+1<<30)
	r, s := newRotary(t)
	x := gputest.New(t, s, dtype.BF16, 1, n, e, d)
	cos, sin := angles(3, n, d/2)
	host := gputest.BF16(kerntest.Normal(kerntest.Rand(2), 1, 1, last, e, d))
	rows := x.Reshape(n, e, d).Rows(n-last, n)
	s.Copy(rows.Buf, gputest.Upload(t, s, host, dtype.BF16).Buf)
	r.RoPE(s, x, gputest.Upload(t, s, cos, dtype.F32), gputest.Upload(t, s, sin, dtype.F32), heads, 0, false)
	want := turned(host, cos, sin, heads, n-last, false)
	emulated := gputest.BF16(kerntest.Of(floats32(want), len(want)))
	gputest.Compare(t, "last rows", gputest.Download(t, s, rows), want, kerntest.F64(emulated))
}

func floats32(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

// BenchmarkCUDARoPE counts the turned heads, read and written once.
func BenchmarkCUDARoPE(b *testing.B) {
	for _, size := range [][5]int{{8, 2048, 18, 16, 64}, {8, 2048, 16, 14, 128}} {
		batch, n, e, heads, d := size[0], size[1], size[2], size[3], size[4]
		b.Run(fmt.Sprintf("%d of %d heads of %d", heads, e, d), func(b *testing.B) {
			r, s := newRotary(b)
			hostCos, hostSin := angles(1, n, d/2)
			cos, sin := gputest.Upload(b, s, hostCos, dtype.F32), gputest.Upload(b, s, hostSin, dtype.F32)
			var x []tensor.Tensor
			for range gputest.Sets(2 * batch * n * e * d) {
				y := gputest.New(b, s, dtype.BF16, batch, n, e, d)
				s.Fill32(y.Buf, 0x3f803f80) // ones
				x = append(x, y)
			}
			gputest.Bandwidth(b, s, 2*2*batch*n*heads*d, func(i int) { r.RoPE(s, x[i%len(x)], cos, sin, heads, 0, false) })
		})
	}
}
