// Command gen writes the AVX2 and AVX-512 kernels of package vec. It is a module
// of its own, so that programs which use vec need nothing that this needs.
//
// Every kernel works on whole vectors: sizes are multiples of 64 bytes (of 16
// elements where it converts), and the caller takes the rest.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: the suffix of its kernels and the bytes of a vector.
type isa struct {
	suffix string
	width  int
}

func (v isa) wide() bool { return v.width == 64 }

func (v isa) vec() reg.VecVirtual {
	if v.wide() {
		return ZMM()
	}
	return YMM()
}

// broadcast puts c into every 32-bit lane of a vector.
func (v isa) broadcast(c uint32) reg.VecVirtual {
	t, x, y := GP32(), XMM(), v.vec()
	MOVL(operand.U32(c), t)
	VMOVD(t, x)
	VPBROADCASTD(x, y)
	return y
}

func main() {
	ConstraintExpr("amd64")
	for _, v := range []isa{{"AVX2", 32}, {"AVX512", 64}} {
		for _, k := range binaries(v) {
			binary(v, k)
			if k.sums() {
				many(v, k)
			}
		}
		sumBoth(v)
		unary(v, "scaleF32", func(x, f reg.VecVirtual) { VMULPS(f, x, x) })
		unary(v, "divideF32", func(x, f reg.VecVirtual) { VDIVPS(f, x, x) })
		for _, dtype := range []string{"BF16", "F16"} {
			widen(v, dtype)
			narrow(v, dtype)
			sumHalf(v, dtype)
		}
		squares(v)
	}
	Generate()
}

// begin opens a kernel and loads the pointers it is given.
func begin(v isa, name, signature string, pointers ...string) []reg.GPVirtual {
	TEXT(name+v.suffix, NOSPLIT, signature)
	Pragma("noescape")
	var regs []reg.GPVirtual
	for _, p := range pointers {
		regs = append(regs, Load(Param(p), GP64()).(reg.GPVirtual))
	}
	return regs
}

func end() {
	VZEROUPPER()
	RET()
}

// loop emits body for 4 pieces at a time, then for single ones. i counts units of
// which a piece has piece; body gets the unit it stands at beyond i.
func loop(piece int, body func(i reg.GPVirtual, off int)) {
	pieces(piece, func(i reg.GPVirtual, size int, _ string) {
		for off := 0; off < size; off += piece {
			body(i, off)
		}
	})
}

// pieces is loop with one body for the units from i on that are taken at a time:
// 4 pieces, and then one. Its labels begin with label.
func pieces(piece int, body func(i reg.GPVirtual, size int, label string)) {
	n := Load(Param("n"), GP64()).(reg.GPVirtual)
	i := GP64()
	XORQ(i, i)
	for _, unroll := range []int{4, 1} {
		label := map[int]string{4: "four", 1: "one"}[unroll]
		step := operand.U32(uint32(unroll * piece))
		Label(label)
		CMPQ(n, step)
		JLT(operand.LabelRef(label + "done"))
		body(i, unroll*piece, label)
		ADDQ(step, i)
		SUBQ(step, n)
		JMP(operand.LabelRef(label))
		Label(label + "done")
	}
}

// vectors calls body for each vector of the 64 bytes at off.
func (v isa) vectors(off int, body func(off int)) {
	for w := 0; w < 64; w += v.width {
		body(off + w)
	}
}

func at(base, i reg.GPVirtual, scale uint8, disp int) operand.Mem {
	return operand.Mem{Base: base, Index: i, Scale: scale, Disp: disp}
}
