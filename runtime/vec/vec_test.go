package vec

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

var (
	allOps  = []Op{Sum, Avg, Min, Max, Prod}
	lengths = []int{0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 1000, 2049}
	// longer than one call of a kernel, and than a block of ReduceMany
	long = 2*callBytes + 333
)

// eachPath runs f with every set of kernels that this processor has.
func eachPath(t testing.TB, f func(name string)) {
	was := active
	defer func() { active = was }()
	for _, p := range paths {
		active = p
		f(p.name)
	}
}

// at returns n elements of dt that start off bytes behind a 64-byte boundary, or near one.
func at(dt dtype.DType, n, off int) []byte {
	b := make([]byte, n*dt.Size()+64+off)
	return b[off : off+n*dt.Size()]
}

// fill stores values in every range that matters: small, large, both signs, and
// for floats NaN, infinities, zeros of both signs and subnormals.
func fill(dt dtype.DType, b []byte, rng *rand.Rand) {
	special := []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1e-40, -1e-42, 6e-8, 65504, 3e38, 1, -1}
	for i := range len(b) / dt.Size() {
		f := (rng.Float64() - 0.5) * math.Exp2(float64(rng.IntN(20)-10))
		if rng.IntN(8) == 0 {
			f = special[rng.IntN(len(special))]
		}
		switch dt {
		case dtype.F32:
			view[float32](b)[i] = float32(f)
		case dtype.F64:
			view[float64](b)[i] = f
		case dtype.F16:
			view[uint16](b)[i] = dtype.F16From(float32(f))
		case dtype.BF16:
			view[uint16](b)[i] = dtype.BF16From(float32(f))
		case dtype.I32:
			view[int32](b)[i] = int32(rng.Uint32() >> rng.IntN(32))
		case dtype.I64:
			view[int64](b)[i] = int64(rng.Uint64() >> rng.IntN(64))
		case dtype.U8:
			b[i] = byte(rng.Uint32())
		}
	}
}

// float reads an element of a floating-point type; 16-bit and 32-bit ones are exact.
func float(dt dtype.DType, b []byte, i int) float64 {
	switch dt {
	case dtype.F32:
		return float64(view[float32](b)[i])
	case dtype.F64:
		return view[float64](b)[i]
	case dtype.F16:
		return float64(dtype.F16To(view[uint16](b)[i]))
	default:
		return float64(dtype.BF16To(view[uint16](b)[i]))
	}
}

func integer(dt dtype.DType, b []byte, i int) int64 {
	switch dt {
	case dtype.I32:
		return int64(view[int32](b)[i])
	case dtype.I64:
		return view[int64](b)[i]
	default:
		return int64(b[i])
	}
}

// wrap is v as an integer of dt keeps it.
func wrap(dt dtype.DType, v int64) int64 {
	switch dt {
	case dtype.I32:
		return int64(int32(v))
	case dtype.U8:
		return int64(uint8(v))
	}
	return v
}

// reference combines element i of the sources, one after the other: 16-bit types
// and float32 round to float32 at each step, and 16-bit types once more at the end.
func reference(dt dtype.DType, op Op, srcs [][]byte, i int) float64 {
	round := func(f float64) float64 {
		if dt != dtype.F64 {
			return float64(float32(f))
		}
		return f
	}
	acc := float(dt, srcs[0], i)
	for _, s := range srcs[1:] {
		x := float(dt, s, i)
		switch op {
		case Sum, Avg:
			acc = round(acc + x)
		case Prod:
			acc = round(acc * x)
		case Min:
			if acc = extreme(acc, x, math.Min); acc != acc {
				return acc
			}
		case Max:
			if acc = extreme(acc, x, math.Max); acc != acc {
				return acc
			}
		}
	}
	if op == Avg {
		acc = round(acc / float64(len(srcs)))
	}
	switch dt {
	case dtype.F16:
		return float64(dtype.F16To(dtype.F16From(float32(acc))))
	case dtype.BF16:
		return float64(dtype.BF16To(dtype.BF16From(float32(acc))))
	}
	return acc
}

// extreme is math.Min or math.Max, with NaN before infinities.
func extreme(a, b float64, f func(a, b float64) float64) float64 {
	if a != a || b != b {
		return math.NaN()
	}
	return f(a, b)
}

func referenceInt(dt dtype.DType, op Op, srcs [][]byte, i int) int64 {
	acc := integer(dt, srcs[0], i)
	for _, s := range srcs[1:] {
		x := integer(dt, s, i)
		switch op {
		case Sum, Avg:
			acc = wrap(dt, acc+x)
		case Prod:
			acc = wrap(dt, acc*x)
		case Min:
			acc = min(acc, x)
		case Max:
			acc = max(acc, x)
		}
	}
	if op == Avg {
		acc /= int64(len(srcs))
	}
	return acc
}

// compare fails unless every element of got is the reference's; any NaN equals any NaN.
func compare(t *testing.T, what string, dt dtype.DType, op Op, got []byte, srcs [][]byte) {
	t.Helper()
	for i := range len(got) / dt.Size() {
		if dt.Float() {
			g, w := float(dt, got, i), reference(dt, op, srcs, i)
			if g != w && (g == g || w == w) {
				t.Fatalf("%s: element %d is %v, want %v", what, i, g, w)
			}
		} else if g, w := integer(dt, got, i), referenceInt(dt, op, srcs, i); g != w {
			t.Fatalf("%s: element %d is %d, want %d", what, i, g, w)
		}
	}
}

func TestReduceMatchesReference(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, dt := range dtype.All {
			for _, op := range allOps {
				for _, n := range append(lengths, long/dt.Size()) {
					for _, off := range []int{0, 1} {
						if n > 10000 && (off != 0 || op != Sum) {
							continue
						}
						what := fmt.Sprintf("%s %v op %d, %d elements at +%d", path, dt, op, n, off)
						a, b, d := at(dt, n, off), at(dt, n, 0), at(dt, n, off+3)
						fill(dt, a, rng)
						fill(dt, b, rng)
						srcs := [][]byte{bytes.Clone(a), bytes.Clone(b)}
						Reduce(dt, op, d, a, b)
						compare(t, what, dt, op, d, srcs)
						if !bytes.Equal(a, srcs[0]) || !bytes.Equal(b, srcs[1]) {
							t.Fatalf("%s: a source changed", what)
						}
						Reduce(dt, op, b, a, b)
						compare(t, what+" into b", dt, op, b, srcs)
						Reduce(dt, op, a, a, srcs[1])
						compare(t, what+" into a", dt, op, a, srcs)
					}
				}
			}
		}
	})
}

func TestReduceManyMatchesReference(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, dt := range dtype.All {
			for _, op := range allOps {
				for _, ranks := range []int{1, 2, 3, 5} {
					for _, n := range []int{0, 1, 17, blockBytes/dt.Size() + 13} {
						what := fmt.Sprintf("%s %v op %d, %d sources of %d elements", path, dt, op, ranks, n)
						var bufs, srcs [][]byte
						for r := range ranks {
							b := at(dt, n, r)
							fill(dt, b, rng)
							bufs, srcs = append(bufs, b), append(srcs, bytes.Clone(b))
						}
						out := at(dt, n, 5)
						ReduceMany(dt, op, [][]byte{out}, bufs)
						compare(t, what, dt, op, out, srcs)
						// In place, in another order than the sources'.
						others := slices.Clone(bufs)
						slices.Reverse(others)
						ReduceMany(dt, op, others, bufs)
						for r, b := range bufs {
							if !bytes.Equal(b, bufs[0]) {
								t.Fatalf("%s: destination %d differs from destination 0", what, r)
							}
						}
						compare(t, what+" in place", dt, op, bufs[0], srcs)
					}
				}
			}
		}
	})
}

// Sums that would vanish if each addition rounded to 16 bits survive.
func TestHalvesRoundOnce(t *testing.T) {
	eachPath(t, func(path string) {
		var srcs [][]byte
		for range 257 {
			b := make([]byte, 100*2)
			for i := range 100 {
				view[uint16](b)[i] = dtype.BF16From(1)
			}
			srcs = append(srcs, b)
		}
		ReduceMany(dtype.BF16, Sum, srcs[:1], srcs)
		if got := float(dtype.BF16, srcs[0], 99); got != 256 { // 257 rounds to even; step by step 256 is reached and kept too
			t.Errorf("%s: 257 ones make %v", path, got)
		}
		for _, b := range srcs[:3] {
			for i := range 100 {
				view[uint16](b)[i] = dtype.BF16From(256)
			}
		}
		// 768 + 254 = 1022, which bfloat16 rounds to 1024; rounding each step keeps 768.
		ReduceMany(dtype.BF16, Sum, srcs[:1], srcs)
		if got := float(dtype.BF16, srcs[0], 99); got != 1024 {
			t.Errorf("%s: 3*256 + 254 make %v, want 1024", path, got)
		}
	})
}

func TestConversionsAreThoseOfDType(t *testing.T) {
	kinds := map[dtype.DType]struct {
		to   func(uint16) float32
		from func(float32) uint16
	}{dtype.BF16: {dtype.BF16To, dtype.BF16From}, dtype.F16: {dtype.F16To, dtype.F16From}}
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(5, 6))
		for dt, k := range kinds {
			all := make([]uint16, 1<<16)
			for i := range all {
				all[i] = uint16(i)
			}
			wide := make([]float32, len(all))
			Widen(dt, wide, bytesOf(all))
			for i, f := range wide {
				if math.Float32bits(f) != math.Float32bits(k.to(all[i])) && f == f {
					t.Fatalf("%s %v: %#04x widens to %v", path, dt, i, f)
				}
			}
			// Each half, its neighbours in float32, the middles between halves, and noise.
			var in []float32
			for i, f := range wide {
				in = append(in, f, math.Nextafter32(f, 9), math.Nextafter32(f, -9), math.Float32frombits(rng.Uint32()))
				if i+1 < len(wide) {
					in = append(in, f/2+wide[i+1]/2)
				}
			}
			for _, off := range []int{0, 1, 7} {
				part := in[off:]
				out := make([]byte, 2*len(part)+1)[1:]
				Narrow(dt, out, part)
				for i, f := range part {
					if got := view[uint16](out)[i]; got != k.from(f) {
						t.Fatalf("%s %v: %v (%#x) narrows to %#04x, want %#04x", path, dt, f, math.Float32bits(f), got, k.from(f))
					}
				}
			}
			acc, want := make([]float32, 9001), make([]float32, 9001)
			for i := range acc {
				acc[i] = float32(i) - 4000
				want[i] = acc[i] + k.to(k.from(float32(i)))
			}
			half := make([]byte, 2*len(acc)+1)[1:]
			for i := range acc {
				view[uint16](half)[i] = k.from(float32(i))
			}
			Accumulate(dt, acc, half)
			for i := range acc {
				if acc[i] != want[i] {
					t.Fatalf("%s %v: accumulated element %d is %v, want %v", path, dt, i, acc[i], want[i])
				}
			}
		}
	})
}

func TestScaleAndDivide(t *testing.T) {
	eachPath(t, func(path string) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, dt := range dtype.All {
			for _, n := range lengths {
				x := at(dt, n, 1)
				fill(dt, x, rng)
				was := bytes.Clone(x)
				for _, by := range []int{1, 2, 3, 7, 8} {
					what := fmt.Sprintf("%s %v, %d elements by %d", path, dt, n, by)
					copy(x, was)
					Divide(dt, x, by)
					for i := range n {
						if !dt.Float() {
							if g, w := integer(dt, x, i), integer(dt, was, i)/int64(by); g != w {
								t.Fatalf("%s: %d, want %d", what, g, w)
							}
							continue
						}
						want := at(dt, 1, 0)
						set(dt, want, float(dt, was, i)/float64(by))
						if g, w := float(dt, x, i), float(dt, want, 0); g != w && (g == g || w == w) {
							t.Fatalf("%s: element %d of %v is %v, want %v", what, i, float(dt, was, i), g, w)
						}
					}
				}
				if !dt.Float() {
					continue
				}
				copy(x, was)
				Scale(dt, x, 0.37)
				for i := range n {
					f := 0.37
					if dt != dtype.F64 {
						f = float64(float32(f))
					}
					want := at(dt, 1, 0)
					set(dt, want, float(dt, was, i)*f)
					if g, w := float(dt, x, i), float(dt, want, 0); g != w && (g == g || w == w) {
						t.Fatalf("%s %v: %v * 0.37 is %v, want %v", path, dt, float(dt, was, i), g, w)
					}
				}
			}
		}
	})
	ints := []int32{7, -7, math.MaxInt32, math.MinInt32, 0}
	Scale(dtype.I32, bytesOf(ints), 1.5)
	for i, want := range []int32{10, -10, math.MaxInt32, math.MinInt32, 0} {
		if ints[i] != want {
			t.Errorf("integer %d scaled by 1.5 is %d, want %d", i, ints[i], want)
		}
	}
	b := []byte{200, 3, 0}
	Scale(dtype.U8, b, 1.5)
	if !bytes.Equal(b, []byte{255, 4, 0}) {
		t.Errorf("bytes scaled by 1.5 are %v", b)
	}
	Scale(dtype.U8, b, -1)
	Scale(dtype.I32, bytesOf(ints), math.NaN())
	if b[0] != 0 || ints[0] != 0 {
		t.Errorf("out of range gives %d, NaN gives %d, want 0", b[0], ints[0])
	}
}

// set rounds f to dt by way of float32.
func set(dt dtype.DType, b []byte, f float64) {
	switch dt {
	case dtype.F32:
		view[float32](b)[0] = float32(f)
	case dtype.F64:
		view[float64](b)[0] = f
	case dtype.F16:
		view[uint16](b)[0] = dtype.F16From(float32(f))
	case dtype.BF16:
		view[uint16](b)[0] = dtype.BF16From(float32(f))
	}
}

func TestSumSquares(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.F64, dtype.F16, dtype.BF16} {
		for _, n := range lengths {
			x := at(dt, n, 1)
			want := 0.0
			for i := range n {
				set(dt, x[i*dt.Size():], float64(i%31)-15)
				want += (float64(i%31) - 15) * (float64(i%31) - 15) // integers below 2^53: every order is exact
			}
			rng := rand.New(rand.NewPCG(uint64(n), 9))
			y := at(dt, n, 0)
			for i := range n {
				set(dt, y[i*dt.Size():], rng.NormFloat64())
			}
			first := math.NaN()
			eachPath(t, func(path string) {
				if got := SumSquares(dt, x); got != want {
					t.Errorf("%s %v: %d elements: %v, want %v", path, dt, n, got, want)
				}
				got := SumSquares(dt, y)
				if first == first && got != first {
					t.Errorf("%s %v: %d elements: %v, plain Go has %v", path, dt, n, got, first)
				}
				first = got
			})
		}
	}
	nan := []float32{1, float32(math.NaN()), 3}
	if got := SumSquares(dtype.F32, bytesOf(nan)); got == got {
		t.Errorf("a NaN is lost: %v", got)
	}
}

func TestAccumulateF32(t *testing.T) {
	eachPath(t, func(path string) {
		for _, n := range lengths {
			dst, src := make([]float32, n), make([]float32, n)
			for i := range dst {
				dst[i], src[i] = float32(i), 0.5
			}
			Accumulate(dtype.F32, dst, bytesOf(src))
			for i := range dst {
				if dst[i] != float32(i)+0.5 {
					t.Fatalf("%s: element %d is %v", path, i, dst[i])
				}
			}
		}
	})
}

func TestMistakesPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"length":   func() { Reduce(dtype.F32, Sum, make([]byte, 8), make([]byte, 8), make([]byte, 4)) },
		"element":  func() { Scale(dtype.F32, make([]byte, 6), 2) },
		"type":     func() { Reduce(dtype.Invalid, Sum, nil, nil, nil) },
		"op":       func() { Reduce(dtype.F32, Prod+1, make([]byte, 4), make([]byte, 4), make([]byte, 4)) },
		"sources":  func() { ReduceMany(dtype.F32, Sum, [][]byte{nil}, nil) },
		"divisor":  func() { Divide(dtype.F32, make([]byte, 4), 0) },
		"norm":     func() { SumSquares(dtype.I32, make([]byte, 4)) },
		"narrow":   func() { Narrow(dtype.I32, make([]byte, 4), make([]float32, 1)) },
		"add":      func() { Accumulate(dtype.F32, make([]float32, 1), make([]byte, 8)) },
		"longdest": func() { ReduceMany(dtype.U8, Sum, [][]byte{make([]byte, 2)}, [][]byte{make([]byte, 1)}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestNoAllocations(t *testing.T) {
	n := 4 << 10
	srcs := [][]byte{at(dtype.F32, n, 0), at(dtype.F32, n, 0), at(dtype.F32, n, 0)}
	for name, f := range map[string]func(){
		"ReduceMany f32":  func() { ReduceMany(dtype.F32, Sum, srcs, srcs) },
		"ReduceMany bf16": func() { ReduceMany(dtype.BF16, Avg, srcs, srcs) },
		"Reduce":          func() { Reduce(dtype.F16, Max, srcs[0], srcs[1], srcs[2]) },
		"Scale":           func() { Scale(dtype.BF16, srcs[0], 0.5) },
		"SumSquares":      func() { SumSquares(dtype.F16, srcs[0]) },
	} {
		f()
		if got := testing.AllocsPerRun(50, f); got >= 1 {
			t.Errorf("%s allocates %v times", name, got)
		}
	}
}
