// Package attention is causal grouped-query attention and rotary positions.
//
// Letters: B sequences, T positions (Tq of queries, Tk of keys), H query heads,
// K key and value heads, D head size.
package attention

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// shape is the sizes of one call.
type shape struct {
	B, Tq, Tk, H, K, D int
}

// dims checks q[B,Tq,H,D], k[B,Tk,K,D], v as k, lse[B,H,Tq] f32.
func dims(op string, q, k, v, lse tensor.Tensor) shape {
	qs, ks := check.Rank(op, "q", q, 4), check.Rank(op, "k", k, 4)
	d := shape{B: qs[0], Tq: qs[1], H: qs[2], D: qs[3], Tk: ks[1], K: ks[2]}
	check.Is(op, "k", k, q.DType, d.B, d.Tk, d.K, d.D)
	check.Like(op, "v", v, "k", k)
	check.Is(op, "lse", lse, dtype.F32, d.B, d.H, d.Tq)
	if d.K == 0 || d.H%d.K != 0 {
		check.Fail(op, "q %v has %d heads, which is no multiple of the %d heads of k %v", q, d.H, d.K, k)
	}
	if d.Tq > d.Tk {
		check.Fail(op, "q %v has more positions than k %v", q, k)
	}
	if d.D == 0 {
		check.Fail(op, "q %v has heads of size 0", q)
	}
	return d
}

// ropeDims checks x[B,T,H,D] with D even and cos, sin [P, D/2] f32, P >= pos+T.
func ropeDims(op string, x, cos, sin tensor.Tensor, pos int) (b, t, h, d int) {
	xs, cs := check.Rank(op, "x", x, 4), check.Rank(op, "cos", cos, 2)
	b, t, h, d = xs[0], xs[1], xs[2], xs[3]
	if d%2 != 0 {
		check.Fail(op, "x %v has heads of odd size", x)
	}
	check.Is(op, "cos", cos, dtype.F32, cs[0], d/2)
	check.Like(op, "sin", sin, "cos", cos)
	if pos < 0 || pos+t > cs[0] {
		check.Fail(op, "positions %d to %d of x %v are outside cos %v", pos, pos+t, x, cos)
	}
	return b, t, h, d
}
