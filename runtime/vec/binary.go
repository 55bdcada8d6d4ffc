package vec

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

type number interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint8
}

// direct reports whether binary does op in one pass: for types that hold their own
// sums, and for sums of 16-bit floats where there is a kernel. op is not Avg.
func direct(dt dtype.DType, op Op) bool {
	return op != Avg && (!half(dt) || active.binary[dt][op] != nil)
}

func half(dt dtype.DType) bool { return dt == dtype.F16 || dt == dtype.BF16 }

// binary stores a op b in dst, where that is direct: the kernel takes whole vectors,
// plain Go the rest.
func binary(dt dtype.DType, op Op, dst, a, b []byte) {
	if k := active.binary[dt][op]; k != nil {
		for len(dst) >= vectorBytes {
			n := min(len(dst), callBytes) &^ (vectorBytes - 1)
			k(&dst[0], &a[0], &b[0], n)
			dst, a, b = dst[n:], a[n:], b[n:]
		}
	}
	if len(dst) == 0 {
		return
	}
	switch dt {
	case dtype.F32:
		plain(op, view[float32](dst), view[float32](a), view[float32](b))
	case dtype.F64:
		plain(op, view[float64](dst), view[float64](a), view[float64](b))
	case dtype.I32:
		plain(op, view[int32](dst), view[int32](a), view[int32](b))
	case dtype.I64:
		plain(op, view[int64](dst), view[int64](a), view[int64](b))
	case dtype.U8:
		plain(op, dst, a, b)
	case dtype.BF16:
		plainHalf(view[uint16](dst), view[uint16](a), view[uint16](b), dtype.BF16To, dtype.BF16From)
	case dtype.F16:
		plainHalf(view[uint16](dst), view[uint16](a), view[uint16](b), dtype.F16To, dtype.F16From)
	default:
		panic(fmt.Sprintf("vec: no arithmetic on %v", dt))
	}
}

// plainHalf is the sum of 16-bit floats.
func plainHalf(dst, a, b []uint16, widen func(uint16) float32, narrow func(float32) uint16) {
	for i := range dst {
		dst[i] = narrow(widen(a[i]) + widen(b[i]))
	}
}

func plain[T number](op Op, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case Prod:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	case Min: // a != a: NaN; of two zeros, b
		for i := range dst {
			if x, y := a[i], b[i]; x < y || x != x {
				dst[i] = x
			} else {
				dst[i] = y
			}
		}
	case Max:
		for i := range dst {
			if x, y := a[i], b[i]; x > y || x != x {
				dst[i] = x
			} else {
				dst[i] = y
			}
		}
	default:
		panic(fmt.Sprintf("vec: unknown operation %d", op))
	}
}

// sumBoth stores the float32 sums a + b in both destinations, each of which may
// be a source. This is the whole work of an all-reduce between two ranks.
func sumBoth(d0, d1, a, b []byte) {
	if k := active.sumBoth; k != nil {
		for len(d0) >= vectorBytes {
			n := min(len(d0), callBytes) &^ (vectorBytes - 1)
			k(&d0[0], &d1[0], &a[0], &b[0], n)
			d0, d1, a, b = d0[n:], d1[n:], a[n:], b[n:]
		}
	}
	x, y, p, q := view[float32](d0), view[float32](d1), view[float32](a), view[float32](b)
	for i := range x {
		s := p[i] + q[i]
		x[i], y[i] = s, s
	}
}
