// Command vec writes the assembly of package vec: exponentials and what softmax
// and activations make of them, and sums of products, for AVX-512 and for AVX2
// with FMA.
//
// Run it by go generate in kernels/internal/vec.
package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// emitter writes for one instruction set. Its methods return new registers.
type emitter struct {
	name  string
	lanes int
	vec   func() VecVirtual
	n, at GPVirtual // elements left, and elements done
	// In the last round, of fewer elements than lanes, loads and stores go by a mask.
	masked bool
	kmask  OpmaskVirtual
	ymask  VecVirtual
}

func main() {
	ConstraintExpr("amd64")
	constants()
	for _, e := range []*emitter{{name: "AVX512", lanes: 16, vec: ZMM}, {name: "AVX2", lanes: 8, vec: YMM}} {
		e.expSum()
		e.softmaxGrad()
		e.swiglu()
		e.swigluGrad()
		e.gelu()
		e.geluGrad()
		e.max()
		e.dot()
		e.sum()
		e.addColumns()
		e.addProducts()
	}
	Generate()
}

// Constants lie sixteen times over, so that any vector reads them as an operand.
var (
	low, high               Mem // exp's range: 0 below, +Inf above
	log2e                   Mem
	ln2, ln2Low             Mem    // ln 2 as a float, and what that leaves
	poly                    [7]Mem // exp(r) = sum of poly[i]*r^i
	one, minusInf           Mem
	geluScale, geluCube     Mem // 2*sqrt(2/pi), and that times 0.044715
	geluCube3, exponentBias Mem
	masks                   Mem // eight lanes of ones, eight of zeros
)

func constants() {
	bits := func(name string, v uint32) Mem {
		m := GLOBL(name, RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(v))
		}
		return m
	}
	float := func(name string, v float64) Mem { return bits(name, math.Float32bits(float32(v))) }
	low, high = float("low", -104), float("high", 89)
	log2e = float("log2e", math.Log2E)
	ln2, ln2Low = float("ln2", math.Ln2), float("ln2low", math.Ln2-float64(float32(math.Ln2)))
	// The minimax polynomial of degree 6 for |r| <= ln(2)/2 with the first two
	// coefficients fixed to 1: its relative error is 0.03 units in the last place.
	for i, c := range []float64{1, 1, 0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368716575205326, 0.001381459878757596} {
		poly[i] = float("poly"+string(rune('0'+i)), c)
	}
	one, minusInf = poly[0], float("minusinf", math.Inf(-1))
	scale := 2 * math.Sqrt(2/math.Pi)
	geluScale, geluCube, geluCube3 = float("geluscale", scale), float("gelucube", scale*0.044715), float("gelucube3", 3*scale*0.044715)
	exponentBias = bits("bias", 127)
	masks = GLOBL("masks", RODATA|NOPTR)
	for i := range 16 {
		v := U32(0)
		if i < 8 {
			v = math.MaxUint32
		}
		DATA(4*i, v)
	}
}

// text starts a function whose first parameter is n.
func (e *emitter) text(name, signature string, doc ...string) {
	TEXT(name+e.name, NOSPLIT, signature)
	Doc(append([]string{name + e.name + " " + doc[0]}, doc[1:]...)...)
	Pragma("noescape")
	e.n, e.at = GP64(), GP64()
	Load(Param("n"), e.n)
	XORQ(e.at, e.at)
}

func (e *emitter) pointer(name string) Register { return Load(Param(name), GP64()) }

// broadcast is a float parameter in every lane.
func (e *emitter) broadcast(name string) VecVirtual {
	x, v := XMM(), e.vec()
	Load(Param(name), x)
	VBROADCASTSS(x, v)
	return v
}

// loop runs body until all n elements are done: once for each whole vector, and
// once with a mask for what is left.
func (e *emitter) loop(body func()) {
	Label("loop")
	CMPQ(e.n, Imm(uint64(e.lanes)))
	JL(LabelRef("rest"))
	body()
	ADDQ(Imm(uint64(e.lanes)), e.at)
	SUBQ(Imm(uint64(e.lanes)), e.n)
	JMP(LabelRef("loop"))
	Label("rest")
	TESTQ(e.n, e.n)
	JZ(LabelRef("done"))
	if e.lanes == 16 {
		bits := GP32()
		MOVL(U32(0xffff), bits)
		BZHIL(e.n.As32(), bits, bits)
		e.kmask = K()
		KMOVW(bits, e.kmask)
	} else {
		p := GP64()
		LEAQ(masks.Offset(4*e.lanes), p)
		NEGQ(e.n)
		e.ymask = e.vec()
		VMOVUPS(Mem{Base: p, Index: e.n, Scale: 4}, e.ymask)
	}
	e.masked = true
	body()
	e.masked = false
	Label("done")
}

// get is the vector that the loop stands at in p, 0 where the mask hides it.
func (e *emitter) get(p Register) VecVirtual {
	m, v := Mem{Base: p, Index: e.at, Scale: 4}, e.vec()
	switch {
	case !e.masked:
		VMOVUPS(m, v)
	case e.lanes == 16:
		VMOVUPS_Z(m, e.kmask, v)
	default:
		VMASKMOVPS(m, e.ymask, v)
	}
	return v
}

// put stores v where the loop stands in p.
func (e *emitter) put(v VecVirtual, p Register) {
	m := Mem{Base: p, Index: e.at, Scale: 4}
	switch {
	case !e.masked:
		VMOVUPS(v, m)
	case e.lanes == 16:
		VMOVUPS(v, e.kmask, m)
	default:
		VMASKMOVPS(v, e.ymask, m)
	}
}

// hide replaces the lanes of v that the mask hides by those of other.
func (e *emitter) hide(v, other VecVirtual) {
	switch {
	case !e.masked:
	case e.lanes == 16:
		VBLENDMPS(v, other, e.kmask, v)
	default:
		VBLENDVPS(e.ymask, v, other, v)
	}
}

func (e *emitter) end() {
	VZEROUPPER()
	RET()
}

func (e *emitter) load(m Mem) VecVirtual {
	v := e.vec()
	VMOVUPS(m, v)
	return v
}

func (e *emitter) mul(a Op, b VecVirtual) VecVirtual { v := e.vec(); VMULPS(a, b, v); return v }
func (e *emitter) add(a Op, b VecVirtual) VecVirtual { v := e.vec(); VADDPS(a, b, v); return v }

// sub is a - b.
func (e *emitter) sub(a VecVirtual, b Op) VecVirtual { v := e.vec(); VSUBPS(b, a, v); return v }

func (e *emitter) zero() VecVirtual {
	v := e.vec()
	if e.lanes == 16 {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
	return v
}

// exp is e^x, within one unit in the last place; NaN stays NaN.
func (e *emitter) exp(x VecVirtual) VecVirtual {
	t, u := e.load(low), e.load(high)
	VMAXPS(x, t, t) // of a NaN and a number, both take their first operand here
	VMINPS(t, u, t)
	n := e.mul(log2e, t)
	if e.lanes == 16 {
		VRNDSCALEPS(Imm(8), n, n)
	} else {
		VROUNDPS(Imm(8), n, n)
	}
	VFNMADD231PS(ln2, n, t)
	VFNMADD231PS(ln2Low, n, t)
	p := e.load(poly[6])
	for i := 5; i >= 0; i-- {
		VFMADD213PS(poly[i], t, p)
	}
	if e.lanes == 16 {
		VSCALEFPS(n, p, p)
		return p
	}
	// Times 2^n in two steps: 2^n itself may be too large or small for a float.
	i, half := e.vec(), e.vec()
	VCVTPS2DQ(n, i)
	VPSRAD(Imm(1), i, half)
	VPSUBD(half, i, i)
	for _, k := range []VecVirtual{half, i} {
		VPADDD(exponentBias, k, k)
		VPSLLD(Imm(23), k, k)
		VMULPS(k, p, p)
	}
	return p
}

// sigmoid is 1/(1+e^-x).
func (e *emitter) sigmoid(x VecVirtual) VecVirtual {
	d := e.add(one, e.exp(e.sub(e.zero(), x)))
	v := e.load(one)
	VDIVPS(d, v, v)
	return v
}

// sums is two f64 accumulators for the halves of a vector of f32.
type sums [2]VecVirtual

func (e *emitter) sums() sums { return sums{e.zero(), e.zero()} }

// halves widens v to f64.
func (e *emitter) halves(v VecVirtual) [2]VecVirtual {
	lo, hi := e.vec(), e.vec()
	if e.lanes == 16 {
		half := YMM()
		VEXTRACTF64X4(Imm(1), v, half)
		VCVTPS2PD(v.AsY(), lo)
		VCVTPS2PD(half, hi)
	} else {
		half := XMM()
		VEXTRACTF128(Imm(1), v, half)
		VCVTPS2PD(v.AsX(), lo)
		VCVTPS2PD(half, hi)
	}
	return [2]VecVirtual{lo, hi}
}

// total adds up all lanes and stores the result as the return value.
func (e *emitter) total(s sums) {
	VADDPD(s[1], s[0], s[0])
	y := s[0].AsY()
	if e.lanes == 16 {
		half := YMM()
		VEXTRACTF64X4(Imm(1), s[0], half)
		VADDPD(half, y, y)
	}
	half := XMM()
	VEXTRACTF128(Imm(1), y, half)
	x := s[0].AsX()
	VADDPD(half, x, x)
	VHADDPD(x, x, x)
	Store(x, ReturnIndex(0))
}

func (e *emitter) expSum() {
	e.text("expSum", "func(n int, x *float32, scale, shift float32) float64",
		"overwrites x by exp(x*scale - shift) and returns their sum.")
	x, scale, shift, s := e.pointer("x"), e.broadcast("scale"), e.broadcast("shift"), e.sums()
	e.loop(func() {
		t := e.get(x)
		VFMSUB213PS(shift, scale, t)
		p := e.exp(t)
		e.put(p, x)
		e.hide(p, e.zero())
		for i, h := range e.halves(p) {
			VADDPD(h, s[i], s[i])
		}
	})
	e.total(s)
	e.end()
}

func (e *emitter) softmaxGrad() {
	e.text("softmaxGrad", "func(n int, s, ds *float32, scale, lse, mean float32)",
		"overwrites s by p = exp(s*scale - lse) and ds by p*(ds-mean)*scale.")
	s, ds := e.pointer("s"), e.pointer("ds")
	scale, lse, mean := e.broadcast("scale"), e.broadcast("lse"), e.broadcast("mean")
	e.loop(func() {
		t := e.get(s)
		VFMSUB213PS(lse, scale, t)
		p := e.exp(t)
		e.put(p, s)
		e.put(e.mul(e.mul(scale, p), e.sub(e.get(ds), mean)), ds)
	})
	e.end()
}

func (e *emitter) swiglu() {
	e.text("swiglu", "func(n int, y, gate, up *float32)", "writes y = gate*sigmoid(gate)*up.")
	y, gate, up := e.pointer("y"), e.pointer("gate"), e.pointer("up")
	e.loop(func() {
		g := e.get(gate)
		e.put(e.mul(e.get(up), e.mul(g, e.sigmoid(g))), y)
	})
	e.end()
}

func (e *emitter) swigluGrad() {
	e.text("swigluGrad", "func(n int, dgate, dup, dy, gate, up *float32)",
		"writes dup = dy*silu and dgate = dy*up*(s + silu*(1-s)), s = sigmoid(gate), silu = gate*s.")
	dgate, dup, dy, gate, up := e.pointer("dgate"), e.pointer("dup"), e.pointer("dy"), e.pointer("gate"), e.pointer("up")
	e.loop(func() {
		g, d := e.get(gate), e.get(dy)
		u := e.get(up) // before dup, which may be up
		s := e.sigmoid(g)
		silu := e.mul(g, s)
		rest := e.sub(e.load(one), s)
		VFMADD213PS(s, silu, rest)
		e.put(e.mul(silu, d), dup)
		e.put(e.mul(e.mul(u, d), rest), dgate)
	})
	e.end()
}

// geluGate is sigmoid(2*sqrt(2/pi)*(x + 0.044715x³)), and x².
func (e *emitter) geluGate(x VecVirtual) (s, square VecVirtual) {
	square = e.mul(x, x)
	t := e.load(geluScale)
	VFMADD231PS(geluCube, square, t)
	return e.sigmoid(e.mul(t, x)), square
}

func (e *emitter) gelu() {
	e.text("gelu", "func(n int, y, x *float32)", "writes y = gelu(x), the tanh approximation.")
	y, x := e.pointer("y"), e.pointer("x")
	e.loop(func() {
		t := e.get(x)
		s, _ := e.geluGate(t)
		e.put(e.mul(s, t), y)
	})
	e.end()
}

func (e *emitter) geluGrad() {
	e.text("geluGrad", "func(n int, dx, dy, x *float32)", "writes dx = dy*gelu'(x).")
	dx, dy, x := e.pointer("dx"), e.pointer("dy"), e.pointer("x")
	e.loop(func() {
		t := e.get(x)
		s, square := e.geluGate(t)
		slope := e.load(geluScale)
		VFMADD231PS(geluCube3, square, slope)
		rest := e.mul(e.sub(e.load(one), s), e.mul(t, s))
		VFMADD213PS(s, slope, rest)
		e.put(e.mul(e.get(dy), rest), dx)
	})
	e.end()
}

func (e *emitter) max() {
	e.text("max", "func(n int, x *float32) float32", "returns the largest element, NaN left out.")
	x, top := e.pointer("x"), e.load(minusInf)
	e.loop(func() {
		t := e.get(x)
		e.hide(t, e.load(minusInf))
		VMAXPS(top, t, top) // of a NaN and a number, the first operand here
	})
	y := top.AsY()
	if e.lanes == 16 {
		half := YMM()
		VEXTRACTF64X4(Imm(1), top, half)
		VMAXPS(half, y, y)
	}
	half, v := XMM(), top.AsX()
	VEXTRACTF128(Imm(1), y, half)
	VMAXPS(half, v, v)
	VPERMILPS(Imm(0b01001110), v, half)
	VMAXPS(half, v, v)
	VPERMILPS(Imm(0b10110001), v, half)
	VMAXPS(half, v, v)
	Store(v, ReturnIndex(0))
	e.end()
}

func (e *emitter) dot() {
	e.text("dot", "func(n int, x, y *float32) float64", "returns the sum of x*y, multiplied and added in f64.")
	x, y, s := e.pointer("x"), e.pointer("y"), e.sums()
	e.loop(func() {
		a, b := e.halves(e.get(x)), e.halves(e.get(y))
		for i := range s {
			VFMADD231PD(a[i], b[i], s[i])
		}
	})
	e.total(s)
	e.end()
}

func (e *emitter) sum() {
	e.text("sum", "func(n int, x *float32) float64", "returns the sum of x, added in f64.")
	x, s := e.pointer("x"), e.sums()
	e.loop(func() {
		for i, h := range e.halves(e.get(x)) {
			VADDPD(h, s[i], s[i])
		}
	})
	e.total(s)
	e.end()
}

// half is the place of half a vector of f64 that the loop stands at in p.
func (e *emitter) half(p Register, i int) Mem {
	return Mem{Base: p, Index: e.at, Scale: 8, Disp: i * e.lanes * 4}
}

func (e *emitter) addColumns() {
	e.text("addColumns", "func(n int, sums *float64, x *float32)",
		"writes sums += x in f64. sums has room for whole vectors.")
	sums, x := e.pointer("sums"), e.pointer("x")
	e.loop(func() {
		for i, h := range e.halves(e.get(x)) {
			VADDPD(e.half(sums, i), h, h)
			VMOVUPD(h, e.half(sums, i))
		}
	})
	e.end()
}

func (e *emitter) addProducts() {
	e.text("addProducts", "func(n int, sums *float64, dy, x *float32, shift, scale float32)",
		"writes sums += dy*((x-shift)*scale), multiplied and added in f64. sums has room for whole vectors.")
	sums, dy, x, shift, scale := e.pointer("sums"), e.pointer("dy"), e.pointer("x"), e.broadcast("shift"), e.broadcast("scale")
	e.loop(func() {
		a, b := e.halves(e.get(dy)), e.halves(e.mul(scale, e.sub(e.get(x), shift)))
		for i := range a {
			VFMADD213PD(e.half(sums, i), b[i], a[i])
			VMOVUPD(a[i], e.half(sums, i))
		}
	})
	e.end()
}
