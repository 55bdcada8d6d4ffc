// Package vec is the loops over rows that CPU kernels spend their time in, beside
// matrix products: exponentials and what softmax and activations make of them,
// and sums of products. They are assembly for AVX-512 and for AVX2 with FMA (see
// kernels/internal/asm), plain Go elsewhere.
//
// The assembly's exponential is within one unit in the last place of f32, is 0
// below -104 and +Inf above 88.73, and keeps NaN. The result for an element does
// not depend on where in the slice it lies; the order of a sum depends on the
// slice's length alone.
package vec

import "unsafe"

// set is the loops for one instruction set, over n elements.
type set struct {
	name        string
	expSum      func(n int, x *float32, scale, shift float32) float64
	softmaxGrad func(n int, s, ds *float32, scale, lse, mean float32)
	swiglu      func(n int, y, gate, up *float32)
	swigluGrad  func(n int, dgate, dup, dy, gate, up *float32)
	gelu        func(n int, y, x *float32)
	geluGrad    func(n int, dx, dy, x *float32)
	max         func(n int, x *float32) float32
	dot         func(n int, x, y *float32) float64
	sum         func(n int, x *float32) float64
	addColumns  func(n int, sums *float64, x *float32)
	addProducts func(n int, sums *float64, dy, x *float32, shift, scale float32)
}

// best is the fastest set that this CPU runs; plain Go is the last of all.
var best = sets()[0]

// ExpSum overwrites x by exp(x*scale - shift) and returns the sum of the results
// in f64.
func ExpSum(x []float32, scale, shift float32) float64 {
	return best.expSum(len(x), first(x, len(x)), scale, shift)
}

// SoftmaxGrad overwrites scores by p = exp(scores*scale - lse) and grad, the
// gradient of p, by that of the scores: p*(grad-mean)*scale.
func SoftmaxGrad(scores, grad []float32, scale, lse, mean float32) {
	n := len(scores)
	best.softmaxGrad(n, first(scores, n), first(grad, n), scale, lse, mean)
}

// SwiGLU writes y = gate*sigmoid(gate)*up. y may be gate or up.
func SwiGLU(y, gate, up []float32) {
	n := len(y)
	best.swiglu(n, first(y, n), first(gate, n), first(up, n))
}

// SwiGLUGrad writes dup = dy*silu(gate) and dgate = dy*up*silu'(gate). dgate and
// dup may be gate and up.
func SwiGLUGrad(dgate, dup, dy, gate, up []float32) {
	n := len(dy)
	best.swigluGrad(n, first(dgate, n), first(dup, n), first(dy, n), first(gate, n), first(up, n))
}

// GELU writes y = gelu(x), the tanh approximation. y may be x.
func GELU(y, x []float32) { best.gelu(len(y), first(y, len(y)), first(x, len(y))) }

// GELUGrad writes dx = dy*gelu'(x). dx may be dy or x.
func GELUGrad(dx, dy, x []float32) {
	n := len(dx)
	best.geluGrad(n, first(dx, n), first(dy, n), first(x, n))
}

// Max is the largest element of x, NaN left out; -Inf where there is none.
func Max(x []float32) float32 { return best.max(len(x), first(x, len(x))) }

// Dot is the sum of x*y, multiplied and added in f64.
func Dot(x, y []float32) float64 { return best.dot(len(x), first(x, len(x)), first(y, len(x))) }

// Sum is the sum of x, added in f64.
func Sum(x []float32) float64 { return best.sum(len(x), first(x, len(x))) }

// Columns is how many columns are summed at a time over the rows of a matrix:
// their sums in f64, and a few cache lines of each row, stay close.
const Columns = 64

// AddColumns writes sums += x, in f64, for at most Columns elements.
func AddColumns(sums *[Columns]float64, x []float32) {
	best.addColumns(len(x), room(sums, len(x)), first(x, len(x)))
}

// AddProducts writes sums += dy*((x-shift)*scale), multiplied and added in f64,
// for at most Columns elements.
func AddProducts(sums *[Columns]float64, dy, x []float32, shift, scale float32) {
	n := len(dy)
	best.addProducts(n, room(sums, n), first(dy, n), first(x, n), shift, scale)
}

// first is the address of x's first element; it panics where x has no room for n.
func first(x []float32, n int) *float32 { return unsafe.SliceData(x[:n]) }

func room(sums *[Columns]float64, n int) *float64 { return unsafe.SliceData(sums[:n]) }
