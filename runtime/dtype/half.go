package dtype

import "math"

// BF16From rounds f to the nearest bfloat16, ties to even. A NaN stays a (quiet) NaN.
func BF16From(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// BF16To widens a bfloat16, exactly.
func BF16To(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16From rounds f to the nearest IEEE half, ties to even; what is too large
// becomes an infinity, what is too small a subnormal or zero, a NaN a quiet NaN.
func F16From(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13)&0x3ff
	case abs >= 0x47800000: // 2^16 and above, infinities included
		return sign | 0x7c00
	case abs >= 0x38800000: // normal halves: 2^-14 and above; rounding may carry into infinity, rightly
		return sign | uint16((abs-0x38000000+0xfff+(abs>>13)&1)>>13)
	}
	// Subnormal: adding 0.5 puts the half's last bit at the float's last bit, and the addition rounds.
	return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-0x3f000000)
}

// F16To widens an IEEE half, exactly.
func F16To(h uint16) float32 {
	sign, abs := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case abs >= 0x7c00:
		return math.Float32frombits(sign | 0x7f800000 | (abs&0x3ff)<<13)
	case abs >= 0x0400:
		return math.Float32frombits(sign | abs<<13 + 0x38000000)
	}
	f := float32(abs) * (1.0 / (1 << 24))
	return math.Float32frombits(math.Float32bits(f) | sign)
}
