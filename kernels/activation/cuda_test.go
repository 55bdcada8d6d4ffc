package activation

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

// onGPU is what run is on the CPU, for bf16 tensors of one shape. Results of two
// runs are compared; in place, the outputs begin as copies of the inputs.
func onGPU(t *testing.T, c CUDA, s *cuda.Stream, dy, gate, up tensor.Tensor, inPlace, shifted bool) results {
	place := func(x tensor.Tensor) tensor.Tensor {
		if shifted {
			return gputest.Shifted(t, s, x)
		}
		return x
	}
	upload := func(x tensor.Tensor) tensor.Tensor { return place(gputest.Upload(t, s, x, dtype.BF16)) }
	fresh := func(x tensor.Tensor) tensor.Tensor { return place(gputest.New(t, s, dtype.BF16, x.Shape...)) }
	both := pair(gate, up)
	x, one, d := upload(both), upload(gate), upload(dy)
	rows := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(both.Shape[0], both.Shape[1]/2) }
	y, dx, g, dg := fresh(gate), fresh(both), fresh(gate), fresh(gate)
	got := gputest.Twice(t, s, func() {
		fromX, fromOne, fromD := x, one, d
		if inPlace {
			s.Copy(dx.Buf, x.Buf)
			s.Copy(g.Buf, one.Buf)
			s.Copy(dg.Buf, d.Buf)
			fromX, fromOne, fromD = dx, g, dg
		}
		c.SwiGLU(s, rows(y), x)
		c.SwiGLUBackward(s, dx, rows(d), fromX)
		c.GELU(s, g, fromOne)
		c.GELUBackward(s, dg, fromD, one)
	}, y, dx, g, dg)
	wide := tensor.New(kerntest.New(both.Shape...).Buf, dtype.F32, both.Shape...)
	for i, v := range gputest.Floats(got[1]) {
		wide.F32()[i] = float32(v)
	}
	r := results{swiglu: got[0], gelu: got[2], dx: got[3]}
	r.dgate, r.dup = halves(wide)
	return r
}

func TestCUDAActivationsAgainstCPU(t *testing.T) {
	c, s := newCUDA(t)
	shapes := [][2]int{{0, 8}, {1, 1}, {63, 7}, {64, 8}, {65, 64}, {3, 4864}, {5, 8960}, {1000, 9}, {1000, 72}, {7, 1001}}
	for _, shape := range shapes {
		n := shape[0] * shape[1]
		r := kerntest.Rand(uint64(n))
		normal := func(dev float64) tensor.Tensor {
			return gputest.BF16(kerntest.Normal(r, dev, n)).Reshape(shape[0], shape[1])
		}
		dy, gate, up := normal(1), normal(3), normal(1)
		cpu := run(t, 1, dy, gate, up)
		d, g, u := kerntest.F64(dy), kerntest.F64(gate), kerntest.F64(up)
		want := map[string][]float64{}
		for i := range n {
			add := func(name string, v float64) { want[name] = append(want[name], v) }
			add("swiglu", silu(g[i])*u[i])
			add("dgate", d[i]*u[i]*siluPrime(g[i]))
			add("dup", d[i]*silu(g[i]))
			add("gelu", gelu(g[i]))
			add("dx", d[i]*geluPrime(g[i]))
		}
		for _, h := range []struct{ inPlace, shifted bool }{{}, {inPlace: true}, {shifted: true}} {
			t.Run(fmt.Sprintf("%v/%+v", shape, h), func(t *testing.T) {
				got := onGPU(t, c, s, dy, gate, up, h.inPlace, h.shifted)
				compare := func(name string, got, cpu tensor.Tensor) {
					gputest.Compare(t, name, got, want[name], kerntest.F64(gputest.BF16(cpu)))
				}
				compare("swiglu", got.swiglu, cpu.swiglu)
				compare("dgate", got.dgate, cpu.dgate)
				compare("dup", got.dup, cpu.dup)
				compare("gelu", got.gelu, cpu.gelu)
				compare("dx", got.dx, cpu.dx)
			})
		}
	}
}

// Far out, the functions are 0 or the identity as on the CPU, up to the largest
// bf16, and NaN stays.
func TestCUDAActivationsFarOut(t *testing.T) {
	c, s := newCUDA(t)
	x := []float32{-3.3e38, -1e20, -1e4, -200, -88, 0, 60, 88, 200, 1e4, 1e20, 3.3e38, float32(math.NaN())}
	n := len(x)
	gate := gputest.BF16(kerntest.Of(x, 1, n))
	ones := kerntest.New(1, n)
	for i := range n {
		ones.F32()[i] = 1
	}
	got := onGPU(t, c, s, ones, gate, ones, false, false)
	for i, v := range gate.F32() {
		step, ramp := 0.0, 0.0
		switch {
		case v > 0:
			step, ramp = 1, float64(v)
		case v == 0:
			step = 0.5
		case v != v:
			step, ramp = math.NaN(), math.NaN()
		}
		for name, pair := range map[string][2]float64{
			"swiglu": {gputest.Floats(got.swiglu)[i], ramp}, "dup": {gputest.Floats(got.dup)[i], ramp},
			"gelu": {gputest.Floats(got.gelu)[i], ramp}, "dgate": {gputest.Floats(got.dgate)[i], step},
			"dx": {gputest.Floats(got.dx)[i], step},
		} {
			if !(math.Abs(pair[0]-pair[1]) < 1e-30) && pair[0] != pair[1] && !(math.IsNaN(pair[0]) && math.IsNaN(pair[1])) {
				t.Errorf("%s at %v: %v, want %v", name, v, pair[0], pair[1])
			}
		}
	}
}

// Tensors of more than 2^31 elements: the last ones are computed too, and from the
// right places.
func TestCUDAActivationsBeyond31Bits(t *testing.T) {
	const rows, channels = 1<<17 + 1, 1 << 13 // 2*rows*channels > 2^31
	gputest.NeedMemory(t, 3*2*rows*channels+1<<30)
	c, s := newCUDA(t)
	x, y := gputest.New(t, s, dtype.BF16, rows, 2*channels), gputest.New(t, s, dtype.BF16, rows, channels)
	const twos = 0x40004000 // two bf16
	s.Fill32(x.Buf, twos)
	last := gputest.BF16(kerntest.Normal(kerntest.Rand(1), 1, 1, 2*channels))
	s.Copy(x.Rows(rows-1, rows).Buf, gputest.Upload(t, s, last, dtype.BF16).Buf)
	row := func(x tensor.Tensor, r int) []float64 { return gputest.Floats(gputest.Download(t, s, x.Rows(r, r+1))) }

	c.SwiGLU(s, y, x)
	for i, v := range row(y, rows-1) {
		g, u := float64(last.F32()[i]), float64(last.F32()[channels+i])
		if want := silu(g) * u; !(math.Abs(v-want) <= 1./128*math.Abs(want)) {
			t.Fatalf("swiglu of the last row [%d] = %v, want %v", i, v, want)
		}
	}
	c.GELU(s, x, x)
	for i, v := range row(x, rows-1) {
		if want := gelu(float64(last.F32()[i])); !(math.Abs(v-want) <= 1./128*math.Abs(want)) {
			t.Fatalf("gelu of the last row [%d] = %v, want %v", i, v, want)
		}
	}
	for _, r := range []int{0, 1, rows / 2, rows - 2} {
		for i, v := range row(x, r) {
			if want := gelu(2); !(math.Abs(v-want) < 0.01) {
				t.Fatalf("gelu of row %d [%d] = %v, want %v", r, i, v, want)
			}
		}
		for i, v := range row(y, r) {
			if want := silu(2) * 2; !(math.Abs(v-want) < 0.02) {
				t.Fatalf("swiglu of row %d [%d] = %v, want %v", r, i, v, want)
			}
		}
	}
}

func TestCUDAActivationsRefuse(t *testing.T) {
	c, s := newCUDA(t)
	b := func(shape ...int) tensor.Tensor { return gputest.New(t, s, dtype.BF16, shape...) }
	f := gputest.New(t, s, dtype.F32, 2, 6)
	kerntest.Panics(t, func() { c.SwiGLU(s, b(2, 3), b(2, 3)) }, "swiglu", "x is bf16[2 3]", "bf16[2 6]")
	kerntest.Panics(t, func() { c.SwiGLUBackward(s, b(2, 5), b(2, 3), b(2, 6)) }, "swiglu backward", "dx is bf16[2 5]")
	kerntest.Panics(t, func() { c.GELU(s, f, f) }, "gelu", "x is f32[2 6]", "bf16[2 6]")
}

func BenchmarkCUDAActivations(b *testing.B) {
	c, s := newCUDA(b)
	const rows, channels = 16384, 4864
	const size = 2 * rows * channels
	normal := func(shape ...int) tensor.Tensor { return gputest.Noise(b, s, 1, dtype.BF16, shape...) }
	x, dx, y, dy := normal(rows, 2*channels), normal(rows, 2*channels), normal(rows, channels), normal(rows, channels)
	for _, k := range []struct {
		name    string
		tensors int
		run     func()
	}{
		{"swiglu", 3, func() { c.SwiGLU(s, y, x) }},
		{"swiglu-backward", 5, func() { c.SwiGLUBackward(s, dx, dy, x) }},
		{"gelu", 4, func() { c.GELU(s, dx, x) }},
		{"gelu-backward", 6, func() { c.GELUBackward(s, dx, dx, x) }},
	} {
		b.Run(k.name, func(b *testing.B) { gputest.Bandwidth(b, s, k.tensors*size, func(int) { k.run() }) })
	}
}
