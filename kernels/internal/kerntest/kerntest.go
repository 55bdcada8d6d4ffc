// Package kerntest is what the tests of the operations share: random tensors,
// streams, a comparator and central differences.
package kerntest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Threads are the worker counts whose results must have the same bits.
var Threads = []int{1, 2, 4}

// Stream starts a CPU stream that ends with the test.
func Stream(t testing.TB) *device.CPUStream {
	s := device.NewCPUStream("test", nil)
	t.Cleanup(func() { _ = s.Close() }) // the error is Wait's to report
	return s
}

// Pool starts workers that end with the test, before which the streams must be done.
func Pool(t testing.TB, threads int) *workers.Pool {
	p := workers.New(threads)
	t.Cleanup(p.Close)
	return p
}

// Wait waits for s and fails the test with its error.
func Wait(t testing.TB, s device.Stream) {
	t.Helper()
	if err := Sync(s); err != nil {
		t.Fatal(err)
	}
}

// Sync waits for s and returns its error.
func Sync(s device.Stream) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Synchronize(ctx)
}

// Rand is a generator that gives the same numbers in every run.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 17)) }

// Of is a tensor over x.
func Of(x []float32, shape ...int) tensor.Tensor {
	return tensor.New(device.Of(x), dtype.F32, shape...)
}

// IDs is an i32 tensor over x.
func IDs(x ...int32) tensor.Tensor { return tensor.New(device.Of(x), dtype.I32, len(x)) }

// Normal is a tensor of normally distributed numbers of the given deviation.
func Normal(r *rand.Rand, dev float64, shape ...int) tensor.Tensor {
	x := New(shape...)
	for i := range x.F32() {
		x.F32()[i] = float32(r.NormFloat64() * dev)
	}
	return x
}

// New is a tensor of NaN, so that an output that nobody wrote shows.
func New(shape ...int) tensor.Tensor {
	t := alloc(dtype.F32, shape...)
	for i := range t.F32() {
		t.F32()[i] = float32(math.NaN())
	}
	return t
}

// Scalar is an f64 tensor of one element.
func Scalar(v float64) tensor.Tensor {
	t := alloc(dtype.F64, 1)
	t.F64()[0] = v
	return t
}

func alloc(dt dtype.DType, shape ...int) tensor.Tensor {
	t, err := tensor.Alloc(device.NewCPU(), dt, shape...)
	if err != nil {
		panic(err)
	}
	return t
}

// Clone copies a tensor.
func Clone(t tensor.Tensor) tensor.Tensor {
	c := alloc(t.DType, t.Shape...)
	copy(c.Buf.Bytes(), t.Buf.Bytes())
	return c
}

// F64 widens the elements of an f32 tensor.
func F64(t tensor.Tensor) []float64 {
	out := make([]float64, t.Numel())
	for i, v := range t.F32() {
		out[i] = float64(v)
	}
	return out
}

// Near fails the test unless every element of got is within tol*(scale+|want|)
// of want, where scale is the root mean square of want: an absolute tolerance
// where sums cancel, a relative one elsewhere.
func Near(t testing.TB, what string, got tensor.Tensor, want []float64, tol float64) {
	t.Helper()
	if msg := Compare(F64(got), want, tol); msg != "" {
		t.Errorf("%s %v: %s", what, got, msg)
	}
}

// Compare is Near's judgement: "" or what is wrong, with the worst element. NaN
// is near NaN alone, and an infinity near itself alone.
func Compare(got, want []float64, tol float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d elements, want %d", len(got), len(want))
	}
	var squares float64
	finite := 0
	for _, w := range want {
		if !math.IsNaN(w) && !math.IsInf(w, 0) {
			squares += w * w
			finite++
		}
	}
	scale := math.Sqrt(squares / float64(max(finite, 1)))
	worst, at, wrong := 0.0, -1, 0
	for i, g := range got {
		w := want[i]
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		excess := math.Abs(g-w) / (tol * (scale + math.Abs(w)))
		if excess <= 1 {
			continue
		}
		wrong++
		if math.IsNaN(excess) {
			excess = math.Inf(1)
		}
		if at < 0 || excess > worst {
			worst, at = excess, i
		}
	}
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d elements wrong, worst [%d]: got %v, want %v, %.3g times the tolerance %g", wrong, len(got), at, got[at], want[at], worst, tol)
}

// Equal fails the test unless a and b have the same bytes.
func Equal(t testing.TB, what string, a, b tensor.Tensor) {
	t.Helper()
	x, y := a.Buf.Bytes(), b.Buf.Bytes()
	if len(x) != len(y) {
		t.Errorf("%s: %v and %v", what, a, b)
		return
	}
	for i := range x {
		if x[i] != y[i] {
			t.Errorf("%s %v: bits differ first in element %d", what, a, i/a.DType.Size())
			return
		}
	}
}

// Gradient is the gradient of f at x by central differences. f reads x, which is
// changed and restored. In f64 its error is near 1e-9 of the values involved.
func Gradient(x []float64, f func() float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		h := 1e-5 * max(1, math.Abs(v))
		x[i] = v + h
		up := f()
		x[i] = v - h
		down := f()
		x[i] = v
		out[i] = (up - down) / (2 * h)
	}
	return out
}

// Dot is the sum of products: the scalar loss whose gradient in y is dy.
func Dot(y, dy []float64) float64 {
	var s float64
	for i := range y {
		s += y[i] * dy[i]
	}
	return s
}

// Panics fails the test unless f panics with a message that holds all of parts.
func Panics(t testing.TB, f func(), parts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		msg := fmt.Sprint(recover())
		for _, p := range parts {
			if !strings.Contains(msg, p) {
				t.Errorf("panic %q does not say %q", msg, p)
			}
		}
	}()
	f()
	t.Error("no panic")
}
