// Command gemm writes the assembly of the matrix product: for AVX-512 and for
// AVX2 with FMA, the product of a tile and the dot products of four rows; and the
// transposition that packs a panel, for AVX2.
//
// Run it by go generate in kernels/gemm.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: the width of its vectors in f32 and its registers.
type isa struct {
	name  string
	lanes int
	vec   func() VecVirtual
}

var (
	avx2   = isa{"AVX2", 8, YMM}
	avx512 = isa{"AVX512", 16, ZMM}
)

func main() {
	ConstraintExpr("amd64")
	tile(avx512, 8, 2)
	tile(avx2, 6, 2)
	dots(avx512)
	dots(avx2)
	transpose()
	Generate()
}

func (s isa) zero(v VecVirtual) {
	if s.lanes == 16 {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
}

// tile multiplies rows × (vecs vectors of columns) over k. Every element is one
// chain of fused multiply-adds in the order of k, so its bits do not depend on
// where in a tile it lies. The strides are in bytes.
func tile(s isa, rows, vecs int) {
	TEXT(fmt.Sprintf("tile%dx%d%s", rows, vecs*s.lanes, s.name), NOSPLIT,
		"func(k int, a *float32, aRow, aCol int, b *float32, bRow int, c *float32, cRow int, add bool)")
	Doc(fmt.Sprintf("tile%dx%d%s writes c[%d,%d] = a·b, or adds it with add, for k >= 1.", rows, vecs*s.lanes, s.name, rows, vecs*s.lanes),
		"a's element (i, l) is at i*aRow + l*aCol bytes, rows of b and c are bRow and cRow bytes apart.")
	Pragma("noescape")
	k, aRow, aCol := Load(Param("k"), GP64()), Load(Param("aRow"), GP64()), Load(Param("aCol"), GP64())
	b, bRow := Load(Param("b"), GP64()), Load(Param("bRow"), GP64())

	// A pointer for every four rows: p, p+aRow, p+2*aRow, p+3*aRow.
	aRow3 := GP64()
	LEAQ(Mem{Base: aRow, Index: aRow, Scale: 2}, aRow3)
	var ptr []GPVirtual
	for i := 0; i < rows; i += 4 {
		p := GP64()
		if i == 0 {
			Load(Param("a"), p)
		} else {
			LEAQ(Mem{Base: ptr[len(ptr)-1], Index: aRow, Scale: 4}, p)
		}
		ptr = append(ptr, p)
	}
	elem := func(i int) Mem {
		m := Mem{Base: ptr[i/4]}
		switch i % 4 {
		case 1:
			m.Index, m.Scale = aRow, 1
		case 2:
			m.Index, m.Scale = aRow, 2
		case 3:
			m.Index, m.Scale = aRow3, 1
		}
		return m
	}

	acc := make([]VecVirtual, rows*vecs)
	for i := range acc {
		acc[i] = s.vec()
		s.zero(acc[i])
	}
	loop := "loop"
	Label(loop)
	bv := make([]VecVirtual, vecs)
	for j := range bv {
		bv[j] = s.vec()
		VMOVUPS(Mem{Base: b, Disp: j * s.lanes * 4}, bv[j])
	}
	for i := range rows {
		av := s.vec()
		VBROADCASTSS(elem(i), av)
		for j := range bv {
			VFMADD231PS(bv[j], av, acc[i*vecs+j])
		}
	}
	for _, p := range ptr {
		ADDQ(aCol, p)
	}
	ADDQ(bRow, b)
	DECQ(k)
	JNZ(LabelRef(loop))

	c, cRow := Load(Param("c"), GP64()), Load(Param("cRow"), GP64())
	add := Load(Param("add"), GP8())
	TESTB(add, add)
	JZ(LabelRef("store"))
	p := GP64()
	MOVQ(c, p)
	for i := range rows {
		for j := range vecs {
			VADDPS(Mem{Base: p, Disp: j * s.lanes * 4}, acc[i*vecs+j], acc[i*vecs+j])
		}
		if i < rows-1 {
			ADDQ(cRow, p)
		}
	}
	Label("store")
	for i := range rows {
		for j := range vecs {
			VMOVUPS(acc[i*vecs+j], Mem{Base: c, Disp: j * s.lanes * 4})
		}
		if i < rows-1 {
			ADDQ(cRow, c)
		}
	}
	VZEROUPPER()
	RET()
}

// dots multiplies one vector by four rows at once, which is how few rows of x
// meet a stored-transposed matrix: the matrix is read once, in order.
func dots(s isa) {
	TEXT("dots"+s.name, NOSPLIT, "func(n int, x, w *float32, wRow int, out *[4]float32)")
	Doc(fmt.Sprintf("dots%s writes the dot products of x[n] and four rows of w, wRow bytes apart, for n a multiple of %d.", s.name, s.lanes))
	Pragma("noescape")
	n, x, wRow := Load(Param("n"), GP64()), Load(Param("x"), GP64()), Load(Param("wRow"), GP64())
	w := [4]Register{Load(Param("w"), GP64())}
	for i := 1; i < 4; i++ {
		w[i] = GP64()
		LEAQ(Mem{Base: w[i-1], Index: wRow, Scale: 1}, w[i])
	}
	acc := [4]VecVirtual{}
	for i := range acc {
		acc[i] = s.vec()
		s.zero(acc[i])
	}
	at := GP64()
	XORQ(at, at)
	Label("loop")
	CMPQ(at, n)
	JGE(LabelRef("sum"))
	xv := s.vec()
	VMOVUPS(Mem{Base: x, Index: at, Scale: 4}, xv)
	for i := range acc {
		VFMADD231PS(Mem{Base: w[i], Index: at, Scale: 4}, xv, acc[i])
	}
	ADDQ(Imm(uint64(s.lanes)), at)
	JMP(LabelRef("loop"))
	Label("sum")
	out := Load(Param("out"), GP64())
	for i := range acc {
		y := acc[i].AsY()
		if s.lanes == 16 {
			half := YMM()
			VEXTRACTF64X4(Imm(1), acc[i], half)
			VADDPS(half, y, y)
		}
		sum, hi := acc[i].AsX(), XMM()
		VEXTRACTF128(Imm(1), y, hi)
		VADDPS(hi, sum, sum)
		VHADDPS(sum, sum, sum)
		VHADDPS(sum, sum, sum)
		VMOVSS(sum, Mem{Base: out, Disp: 4 * i})
	}
	VZEROUPPER()
	RET()
}

// transpose turns eight rows into columns, eight elements of each at a time.
func transpose() {
	TEXT("transpose8AVX2", NOSPLIT, "func(n int, dst *float32, dstRow int, src *float32, srcRow int)")
	Doc("transpose8AVX2 writes dst[n,8] = src[8,n]ᵀ, for n a multiple of 8. Rows are dstRow and srcRow bytes apart.")
	Pragma("noescape")
	n, dst, src := Load(Param("n"), GP64()), Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	dstRow, srcRow := Load(Param("dstRow"), GP64()), Load(Param("srcRow"), GP64())
	Label("loop")
	CMPQ(n, Imm(8))
	JL(LabelRef("done"))
	row, p := [8]VecVirtual{}, GP64()
	MOVQ(src, p)
	for i := range row {
		row[i] = YMM()
		VMOVUPS(Mem{Base: p}, row[i])
		ADDQ(srcRow, p)
	}
	// Neighbouring rows are interleaved by one element, by two, and by halves.
	var pairs, quads [8]VecVirtual
	for i := 0; i < 8; i += 2 {
		pairs[i], pairs[i+1] = YMM(), YMM()
		VUNPCKLPS(row[i+1], row[i], pairs[i])
		VUNPCKHPS(row[i+1], row[i], pairs[i+1])
	}
	for i := 0; i < 8; i += 4 {
		for j := range 2 {
			lo, hi := YMM(), YMM()
			VSHUFPS(Imm(0x44), pairs[i+2+j], pairs[i+j], lo)
			VSHUFPS(Imm(0xee), pairs[i+2+j], pairs[i+j], hi)
			quads[i+2*j], quads[i+2*j+1] = lo, hi
		}
	}
	for _, pick := range []uint64{0x20, 0x31} {
		for i := range 4 {
			out := YMM()
			VPERM2F128(Imm(pick), quads[4+i], quads[i], out)
			VMOVUPS(out, Mem{Base: dst})
			ADDQ(dstRow, dst)
		}
	}
	ADDQ(Imm(32), src)
	SUBQ(Imm(8), n)
	JMP(LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}
