package vec

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Widen converts elements of dt (F32, BF16 or F16) to float32, exactly.
// src holds len(dst) elements and does not overlap dst.
func Widen(dt dtype.DType, dst []float32, src []byte) {
	check(dt, len(dst)*dt.Size(), src)
	widen(dt, bytesOf(dst), src)
}

// Narrow rounds float32 to elements of dt (F32, BF16 or F16): to nearest, ties to
// even; what is too large becomes an infinity, a NaN stays a NaN.
// dst holds len(src) elements and does not overlap src.
func Narrow(dt dtype.DType, dst []byte, src []float32) {
	check(dt, len(src)*dt.Size(), dst)
	narrow(dt, dst, bytesOf(src))
}

// Accumulate adds elements of dt (F32, BF16 or F16) to dst.
func Accumulate(dt dtype.DType, dst []float32, src []byte) {
	check(dt, len(dst)*dt.Size(), src)
	acc := bytesOf(dst)
	if dt == dtype.F32 {
		binary(dt, Sum, acc, acc, src)
		return
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for len(src) > 0 {
		n := min(len(src), blockBytes)
		wide := s.next[:2*n]
		widen(dt, wide, src[:n])
		binary(dtype.F32, Sum, acc[:2*n], acc[:2*n], wide)
		acc, src = acc[2*n:], src[n:]
	}
}

// widen is Widen with float32 elements as bytes.
func widen(dt dtype.DType, dst, src []byte) {
	if dt == dtype.F32 {
		copy(dst, src)
		return
	}
	if k := active.widen[dt]; k != nil {
		for len(dst) >= vectorBytes {
			n := min(len(dst), callBytes) / vectorBytes * (vectorBytes / 4)
			k(&dst[0], &src[0], n)
			dst, src = dst[4*n:], src[2*n:]
		}
	}
	d, s := view[float32](dst), view[uint16](src)
	switch dt {
	case dtype.BF16:
		for i := range d {
			d[i] = dtype.BF16To(s[i])
		}
	case dtype.F16:
		for i := range d {
			d[i] = dtype.F16To(s[i])
		}
	default:
		panic(fmt.Sprintf("vec: %v does not convert to f32", dt))
	}
}

// narrow is Narrow with float32 elements as bytes.
func narrow(dt dtype.DType, dst, src []byte) {
	if dt == dtype.F32 {
		copy(dst, src)
		return
	}
	if k := active.narrow[dt]; k != nil {
		for len(src) >= vectorBytes {
			n := min(len(src), callBytes) / vectorBytes * (vectorBytes / 4)
			k(&dst[0], &src[0], n)
			dst, src = dst[2*n:], src[4*n:]
		}
	}
	d, s := view[uint16](dst), view[float32](src)
	switch dt {
	case dtype.BF16:
		for i := range d {
			d[i] = dtype.BF16From(s[i])
		}
	case dtype.F16:
		for i := range d {
			d[i] = dtype.F16From(s[i])
		}
	default:
		panic(fmt.Sprintf("vec: f32 does not convert to %v", dt))
	}
}
