package vec

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Scale multiplies x by f in place. F32, F16 and BF16 multiply in float32 by f
// rounded to float32, and round once. Integers multiply in float64, drop the
// fraction, and stop at the ends of their range; NaN gives 0.
func Scale(dt dtype.DType, x []byte, f float64) {
	check(dt, len(x))
	switch dt {
	case dtype.F32:
		scaleF32(x, float32(f))
	case dtype.F64:
		v := view[float64](x)
		for i := range v {
			v[i] *= f
		}
	case dtype.F16, dtype.BF16:
		throughF32(dt, x, func(wide []byte) { scaleF32(wide, float32(f)) })
	case dtype.I32:
		v := view[int32](x)
		for i := range v {
			v[i] = int32(toInt(float64(v[i])*f, math.MinInt32, math.MaxInt32))
		}
	case dtype.I64:
		v := view[int64](x)
		for i := range v {
			v[i] = toInt(float64(v[i])*f, math.MinInt64, math.MaxInt64)
		}
	case dtype.U8:
		for i := range x {
			x[i] = uint8(toInt(float64(x[i])*f, 0, math.MaxUint8))
		}
	}
}

// Divide divides x by n in place: the second half of an average. Floats are the
// nearest to the quotient, integers drop its fraction (-7/2 is -3).
func Divide(dt dtype.DType, x []byte, n int) {
	check(dt, len(x))
	if n < 1 || n > 1<<24 {
		panic(fmt.Sprintf("vec: an average of %d", n))
	}
	if dt == dtype.F16 || dt == dtype.BF16 {
		throughF32(dt, x, func(wide []byte) { divide(dtype.F32, wide, n) })
		return
	}
	divide(dt, x, n)
}

// divide is Divide for types that hold their own quotients.
func divide(dt dtype.DType, x []byte, n int) {
	switch dt {
	case dtype.F32:
		if n&(n-1) == 0 {
			scaleF32(x, 1/float32(n)) // exact, as the division is
			return
		}
		divideF32(x, float32(n))
	case dtype.F64:
		v := view[float64](x)
		for i := range v {
			v[i] /= float64(n)
		}
	case dtype.I32:
		v := view[int32](x)
		for i := range v {
			v[i] /= int32(n)
		}
	case dtype.I64:
		v := view[int64](x)
		for i := range v {
			v[i] /= int64(n)
		}
	case dtype.U8:
		for i := range x {
			x[i] = uint8(int(x[i]) / n)
		}
	default:
		panic(fmt.Sprintf("vec: no arithmetic on %v", dt))
	}
}

func scaleF32(x []byte, f float32) {
	x = unary(active.scale, x, f)
	v := view[float32](x)
	for i := range v {
		v[i] *= f
	}
}

func divideF32(x []byte, f float32) {
	x = unary(active.divide, x, f)
	v := view[float32](x)
	for i := range v {
		v[i] /= f
	}
}

// unary lets the kernel take whole vectors and returns the rest.
func unary(k func(x *byte, n int, f float32), x []byte, f float32) []byte {
	if k == nil {
		return x
	}
	for len(x) >= vectorBytes {
		n := min(len(x), callBytes) &^ (vectorBytes - 1)
		k(&x[0], n, f)
		x = x[n:]
	}
	return x
}

// throughF32 applies f to 16-bit floats, widened.
func throughF32(dt dtype.DType, x []byte, f func(wide []byte)) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for len(x) > 0 {
		n := min(len(x), blockBytes)
		wide := s.acc[:2*n]
		widen(dt, wide, x[:n])
		f(wide)
		narrow(dt, x[:n], wide)
		x = x[n:]
	}
}

// toInt drops the fraction of f; beyond the range it stops at lo or hi.
func toInt(f float64, lo, hi int64) int64 {
	switch {
	case f != f:
		return 0
	case f <= float64(lo):
		return lo
	case f >= float64(hi):
		return hi
	}
	return int64(f)
}
