package cublaslt

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
)

// Of algorithms that take about as long as the fastest those come first that are faster with
// zeros for operands; others stay behind them. Products are checked with random numbers.
func TestNearEqualsAreRanked(t *testing.T) {
	const us = time.Microsecond
	f := newFake(t)
	f.lt.Offer(fakelt.Slow, fakelt.Good, fakelt.Restless) // 200, 60 and 20 µs, with any operands
	b := newBed(f.dev, f.stream, f.handle(t, 0))
	d, x, y := b.square(t, 16)
	p, err := b.h.newPlan(newProduct(d.Matrix, x.Matrix, y.Matrix, 0, Matrix{}), 0)
	if err != nil {
		t.Fatal(err)
	}
	list, err := b.h.candidates(p)
	if err != nil {
		t.Fatal(err)
	}
	space, err := f.dev.Alloc(b.h.workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		times []time.Duration // as if measured
		want  []int
		again bool // by zeros
	}{
		{[]time.Duration{1000 * us, 1005 * us, 2000 * us}, []int{1, 0, 2}, true},
		{[]time.Duration{1000 * us, 1500 * us, 1009 * us}, []int{2, 0, 1}, true},
		{[]time.Duration{1000 * us, 1020 * us, 1011 * us}, []int{0, 2, 1}, false},
		{[]time.Duration{0, 1020 * us, 1000 * us}, []int{2, 1}, false},
	} {
		trial := &trial{h: b.h, s: f.stream, p: p, space: space, ctx: t.Context()}
		if err := trial.open(); err != nil {
			t.Fatal(err)
		}
		cleared := f.gpu.Calls("cuMemsetD8Async")
		got, err := trial.rank(list, c.times)
		if err != nil || !slices.Equal(got, c.want) || f.gpu.Calls("cuMemsetD8Async")-cleared > 0 != c.again {
			t.Errorf("%v: %v, %v; want %v", c.times, got, err, c.want)
		}
		if !slices.ContainsFunc(download(t, f.stream, trial.memory), func(b byte) bool { return b != 0 }) {
			t.Errorf("%v: the operands are zeros", c.times)
		}
		if err := trial.close(nil); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(b.h.release(p), f.dev.Free(space), f.stream.Err()); err != nil {
		t.Error(err)
	}
}
