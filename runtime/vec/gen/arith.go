package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// kernel is dst = a op b: do combines a vector of a with one of b in memory.
// The assembler names operands in reverse: the last one is the result.
type kernel struct {
	name string
	do   func(a reg.VecVirtual, b operand.Mem) reg.VecVirtual
}

// sums says whether many has the kernel, too: its do leaves the result in a.
func (k kernel) sums() bool { return strings.HasPrefix(k.name, "sum") }

// many is the kernel's name where it takes many sources.
func (k kernel) many() string { return strings.Replace(k.name, "sum", "sumMany", 1) }

type instruction func(ops ...operand.Op)

// binaries are the kernels that v has instructions for.
func binaries(v isa) []kernel {
	plain := func(name string, do instruction) kernel {
		return kernel{name, func(a reg.VecVirtual, b operand.Mem) reg.VecVirtual {
			do(b, a, a)
			return a
		}}
	}
	kernels := []kernel{
		plain("sumF32", VADDPS), plain("prodF32", VMULPS), v.extreme("minF32", VMINPS, v.keepNaN32), v.extreme("maxF32", VMAXPS, v.keepNaN32),
		plain("sumF64", VADDPD), plain("prodF64", VMULPD), v.extreme("minF64", VMINPD, v.keepNaN64), v.extreme("maxF64", VMAXPD, v.keepNaN64),
		plain("sumI32", VPADDD), plain("prodI32", VPMULLD), plain("minI32", VPMINSD), plain("maxI32", VPMAXSD),
		plain("sumI64", VPADDQ),
		plain("sumU8", VPADDB), plain("minU8", VPMINUB), plain("maxU8", VPMAXUB),
	}
	if v.wide() {
		kernels = append(kernels, plain("prodI64", VPMULLQ), plain("minI64", VPMINSQ), plain("maxI64", VPMAXSQ))
	}
	return kernels
}

// extreme is a minimum or maximum of floats. The instruction gives b where one of
// the two is NaN, so a NaN in a has to be put back.
func (v isa) extreme(name string, do instruction, keepNaN func(a, result reg.VecVirtual)) kernel {
	return kernel{name, func(a reg.VecVirtual, b operand.Mem) reg.VecVirtual {
		result := v.vec()
		do(b, a, result)
		keepNaN(a, result)
		return result
	}}
}

const unordered = operand.U8(3) // a comparison that is true of NaN

func (v isa) keepNaN32(a, result reg.VecVirtual) {
	if v.wide() {
		k := K()
		VCMPPS(unordered, a, a, k)
		VMOVAPS(a, k, result)
		return
	}
	m := YMM()
	VCMPPS(unordered, a, a, m)
	VBLENDVPS(m, a, result, result)
}

func (v isa) keepNaN64(a, result reg.VecVirtual) {
	if v.wide() {
		k := K()
		VCMPPD(unordered, a, a, k)
		VMOVAPD(a, k, result)
		return
	}
	m := YMM()
	VCMPPD(unordered, a, a, m)
	VBLENDVPD(m, a, result, result)
}

func binary(v isa, k kernel) {
	p := begin(v, k.name, "func(dst, a, b *byte, n int)", "dst", "a", "b")
	loop(64, func(i reg.GPVirtual, off int) {
		v.vectors(off, func(off int) {
			x := v.vec()
			VMOVUPS(at(p[1], i, 1, off), x)
			VMOVUPS(k.do(x, at(p[2], i, 1, off)), at(p[0], i, 1, off))
		})
	})
	end()
}

// sumBoth emits d0 = d1 = a + b of float32.
func sumBoth(v isa) {
	p := begin(v, "sumBothF32", "func(d0, d1, a, b *byte, n int)", "d0", "d1", "a", "b")
	loop(64, func(i reg.GPVirtual, off int) {
		v.vectors(off, func(off int) {
			x := v.vec()
			VMOVUPS(at(p[2], i, 1, off), x)
			VADDPS(at(p[3], i, 1, off), x, x)
			VMOVUPS(x, at(p[0], i, 1, off))
			VMOVUPS(x, at(p[1], i, 1, off))
		})
	})
	end()
}

// many emits d = a op b op c..., all sources in their order, for all destinations.
// There are two sources or more. It reads a piece of every source before it writes
// that of any destination.
func many(v isa, k kernel) {
	TEXT(k.many()+v.suffix, NOSPLIT, "func(dsts, srcs **byte, nd, ns, n int)")
	Pragma("noescape")
	var args []reg.GPVirtual
	for _, name := range []string{"dsts", "srcs", "nd", "ns"} {
		args = append(args, Load(Param(name), GP64()).(reg.GPVirtual))
	}
	dsts, srcs, nd, ns := args[0], args[1], args[2], args[3]
	array, p := GP64(), GP64()
	pieces(64, func(i reg.GPVirtual, size int, label string) {
		var acc []reg.VecVirtual
		MOVQ(operand.Mem{Base: srcs}, p)
		for off := 0; off < size; off += v.width {
			x := v.vec()
			VMOVUPS(at(p, i, 1, off), x)
			acc = append(acc, x)
		}
		MOVQ(operand.U32(1), array)
		Label(label + "source")
		MOVQ(at(srcs, array, 8, 0), p)
		for j, x := range acc {
			k.do(x, at(p, i, 1, j*v.width))
		}
		INCQ(array)
		CMPQ(array, ns)
		JLT(operand.LabelRef(label + "source"))
		XORQ(array, array)
		Label(label + "destination")
		MOVQ(at(dsts, array, 8, 0), p)
		for j, x := range acc {
			VMOVUPS(x, at(p, i, 1, j*v.width))
		}
		INCQ(array)
		CMPQ(array, nd)
		JLT(operand.LabelRef(label + "destination"))
	})
	end()
}

// unary emits x = x op f in place, f in every lane.
func unary(v isa, name string, do func(x, f reg.VecVirtual)) {
	p := begin(v, name, "func(x *byte, n int, f float32)", "x")
	arg, err := Param("f").Resolve()
	if err != nil {
		panic(err)
	}
	f := v.vec()
	VBROADCASTSS(arg.Addr, f)
	loop(64, func(i reg.GPVirtual, off int) {
		v.vectors(off, func(off int) {
			x := v.vec()
			VMOVUPS(at(p[0], i, 1, off), x)
			do(x, f)
			VMOVUPS(x, at(p[0], i, 1, off))
		})
	})
	end()
}

// squares emits lanes[i%16] += x[i]*x[i] in float64, x float32.
func squares(v isa) {
	p := begin(v, "squaresF32", "func(lanes *float64, x *byte, n int)", "lanes", "x")
	perVector := v.width / 8
	var sums []reg.VecVirtual
	for off := 0; off < 128; off += v.width {
		s := v.vec()
		VMOVUPS(operand.Mem{Base: p[0], Disp: off}, s)
		sums = append(sums, s)
	}
	loop(64, func(i reg.GPVirtual, off int) {
		for k, s := range sums {
			x := v.vec()
			VCVTPS2PD(at(p[1], i, 1, off+4*perVector*k), x)
			VFMADD231PD(x, x, s)
		}
	})
	for k, s := range sums {
		VMOVUPS(s, operand.Mem{Base: p[0], Disp: k * v.width})
	}
	end()
}
