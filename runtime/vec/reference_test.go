package vec

import (
	"math"
	"math/rand/v2"
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
