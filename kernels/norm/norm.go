// Package norm is the normalisations over the last dimension: of rows, and of the
// heads of queries and keys.
//
// Letters: N rows, C channels, H heads of queries, K of keys and of values, D their
// size. mean[N] and rstd[N] are f32 whatever the type of the rest, and are kept for
// the backward pass.
package norm

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// arg is an argument and its name.
type arg struct {
	name string
	t    tensor.Tensor
}

// dims checks that rows are [N,C] of one type with C > 0, channels [C] of that
// type, grads [C] of that type or f32, and stats [N] f32. Channels and grads that
// are none are left out.
func dims(op string, rows, channels, grads, stats []arg) (n, c int) {
	first := rows[0]
	shape := check.Rank(op, first.name, first.t, 2)
	n, c = shape[0], shape[1]
	if c == 0 {
		check.Fail(op, "%s is %v: nothing to normalise over", first.name, first.t)
	}
	for _, a := range rows[1:] {
		check.Is(op, a.name, a.t, first.t.DType, n, c)
	}
	for _, a := range channels {
		if !a.t.None() {
			check.Is(op, a.name, a.t, first.t.DType, c)
		}
	}
	for _, a := range grads {
		if !a.t.None() {
			check.Grad(op, a.name, a.t, first.t.DType, c)
		}
	}
	for _, a := range stats {
		check.Is(op, a.name, a.t, dtype.F32, n)
	}
	return n, c
}
