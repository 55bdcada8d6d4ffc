package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// widen emits float32 from 16-bit floats; n counts elements.
func widen(v isa, dtype string) {
	p := begin(v, "widen"+dtype, "func(dst, src *byte, n int)", "dst", "src")
	loop(16, func(i reg.GPVirtual, off int) {
		v.vectors(4*off, func(off int) {
			VMOVUPS(v.load(dtype, at(p[1], i, 2, off/2)), at(p[0], i, 4, off))
		})
	})
	end()
}

// narrow emits 16-bit floats from float32, rounded to nearest, ties to even; n
// counts elements.
func narrow(v isa, dtype string) {
	p := begin(v, "narrow"+dtype, "func(dst, src *byte, n int)", "dst", "src")
	round := v.round(dtype)
	loop(16, func(i reg.GPVirtual, off int) {
		v.vectors(4*off, func(off int) {
			x := v.vec()
			VMOVUPS(at(p[1], i, 4, off), x)
			round(x, at(p[0], i, 2, off/2))
		})
	})
	end()
}

// sumHalf emits dst = a + b of 16-bit floats, added in float32 and rounded once.
func sumHalf(v isa, dtype string) {
	p := begin(v, "sum"+dtype, "func(dst, a, b *byte, n int)", "dst", "a", "b")
	round := v.round(dtype)
	loop(64, func(i reg.GPVirtual, off int) {
		for w := 0; w < 64; w += v.width / 2 {
			x, y := v.load(dtype, at(p[1], i, 1, off+w)), v.load(dtype, at(p[2], i, 1, off+w))
			VADDPS(y, x, x)
			round(x, at(p[0], i, 1, off+w))
		}
	})
	end()
}

// load widens a vector of 16-bit floats.
func (v isa) load(dtype string, from operand.Mem) reg.VecVirtual {
	x := v.vec()
	if dtype == "BF16" {
		VPMOVZXWD(from, x)
		VPSLLD(operand.U8(16), x, x)
	} else {
		VCVTPH2PS(from, x)
	}
	return x
}

// round prepares constants, and returns what narrows a vector into memory.
func (v isa) round(dtype string) func(x reg.VecVirtual, to operand.Mem) {
	if dtype == "BF16" {
		return v.roundBF16()
	}
	return func(x reg.VecVirtual, to operand.Mem) { VCVTPS2PH(operand.U8(0), x, to) }
}

// roundBF16 adds 0x7fff and the last bit that stays, and drops the lower half. A
// NaN keeps its upper half, with the quiet bit set.
func (v isa) roundBF16() func(x reg.VecVirtual, to operand.Mem) {
	one, bias, quiet := v.broadcast(1), v.broadcast(0x7fff), v.broadcast(0x40)
	return func(x reg.VecVirtual, to operand.Mem) {
		top, sum := v.vec(), v.vec()
		VPSRLD(operand.U8(16), x, top)
		if v.wide() {
			nan := K()
			VPANDD(one, top, sum)
			VPADDD(bias, sum, sum)
			VPADDD(x, sum, sum)
			VPSRLD(operand.U8(16), sum, sum)
			VCMPPS(unordered, x, x, nan)
			VPORD(quiet, top, nan, sum)
			VPMOVDW(sum, to)
			return
		}
		nan := YMM()
		VPAND(one, top, sum)
		VPADDD(bias, sum, sum)
		VPADDD(x, sum, sum)
		VPSRLD(operand.U8(16), sum, sum)
		VCMPPS(unordered, x, x, nan)
		VPOR(quiet, top, top)
		VBLENDVPS(nan, top, sum, sum)
		VPACKUSDW(sum, sum, sum)
		VPERMQ(operand.U8(0x08), sum, sum)
		VMOVDQU(sum.AsX(), to)
	}
}
