// Package attention is causal grouped-query attention and rotary positions.
//
// Letters: B sequences, T positions, H query heads, K key and value heads, D head
// size, E = H+2K, P positions of a cache.
//
// Queries, keys and values lie side by side, as one product writes them: row t of
// qkv[B,T,E,D] is H query heads, then K key heads, then K value heads. Query head h
// reads key head h/(H/K). Query t sees the keys from its document's first position
// up to t.
package attention

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// shape is the sizes of one call.
type shape struct {
	B, T, H, K, D int
}

// heads is E, the heads of a row of qkv.
func (s shape) heads() int { return s.H + 2*s.K }

// dims checks qkv[B,T,H+2K,D], o[B,T,H,D] of its type, lse[B,H,T] f32 and docs[B,T]
// i32 or none.
func dims(op string, o, lse, qkv, docs tensor.Tensor) shape {
	s := packed(op, o, qkv)
	check.Is(op, "lse", lse, dtype.F32, s.B, s.H, s.T)
	if !docs.None() {
		check.Is(op, "docs", docs, dtype.I32, s.B, s.T)
	}
	return s
}

// packed reads the sizes off qkv and o.
func packed(op string, o, qkv tensor.Tensor) shape {
	xs, os := check.Rank(op, "qkv", qkv, 4), check.Rank(op, "o", o, 4)
	s := shape{B: xs[0], T: xs[1], H: os[2], K: (xs[2] - os[2]) / 2, D: xs[3]}
	check.Is(op, "o", o, qkv.DType, s.B, s.T, s.H, s.D)
	switch {
	case s.K < 1 || xs[2] != s.heads():
		check.Fail(op, "qkv %v does not hold the %d heads of o %v and as many heads of keys as of values", qkv, s.H, o)
	case s.H%s.K != 0:
		check.Fail(op, "o %v has %d heads, which is no multiple of the %d heads of keys in qkv %v", o, s.H, s.K, qkv)
	case s.D == 0:
		check.Fail(op, "qkv %v has heads of size 0", qkv)
	}
	return s
}

// nextDims checks a text of one sequence: keys and values [P,K,D], pos+T <= P.
func nextDims(op string, o, keys, values, qkv tensor.Tensor, pos int) (s shape, p int) {
	s = packed(op, o, qkv)
	p = check.Rank(op, "keys", keys, 3)[0]
	check.Is(op, "keys", keys, qkv.DType, p, s.K, s.D)
	check.Like(op, "values", values, "keys", keys)
	if s.B != 1 || pos < 0 || pos+s.T > p {
		check.Fail(op, "positions %d to %d of qkv %v, in a cache %v for one sequence", pos, pos+s.T, qkv, keys)
	}
	return s, p
}

// ropeDims checks x[B,T,E,D] with D even, of which the first heads turn, and cos,
// sin [P, D/2] f32, P >= pos+T.
func ropeDims(op string, x, cos, sin tensor.Tensor, heads, pos int) (b, t, e, d int) {
	xs, cs := check.Rank(op, "x", x, 4), check.Rank(op, "cos", cos, 2)
	b, t, e, d = xs[0], xs[1], xs[2], xs[3]
	if d%2 != 0 {
		check.Fail(op, "x %v has heads of odd size", x)
	}
	if heads < 0 || heads > e {
		check.Fail(op, "%d heads of x %v", heads, x)
	}
	check.Is(op, "cos", cos, dtype.F32, cs[0], d/2)
	check.Like(op, "sin", sin, "cos", cos)
	if pos < 0 || pos+t > cs[0] {
		check.Fail(op, "positions %d to %d of x %v are outside cos %v", pos, pos+t, x, cos)
	}
	return b, t, e, d
}
