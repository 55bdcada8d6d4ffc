package elementwise

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

const grain = 1 << 14 // elements a task

// Add writes y = a + b, any shape, f32. y may be a or b.
func (c CPU) Add(s device.Stream, y, a, b tensor.Tensor) {
	const op = "add"
	n := addDims(op, y, a, b)
	yv, av, bv := y.F32(), a.F32(), b.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			y, a, b := yv[from:to], av[from:to], bv[from:to]
			for i := range y {
				y[i] = a[i] + b[i]
			}
		})
		return nil
	})
}

// Copy writes y = x, of one shape. Between f32, bf16 and f16 it converts, to the
// nearest value, ties to even; other types must be equal.
func (c CPU) Copy(s device.Stream, y, x tensor.Tensor) {
	const op = "copy"
	n := copyDims(op, y, x)
	if x.DType == y.DType {
		yv, xv := y.Buf.Bytes(), x.Buf.Bytes()
		workers.Enqueue(s, op, func() error {
			c.pool.Range(len(yv), 4*grain, func(_, from, to int) { copy(yv[from:to], xv[from:to]) })
			return nil
		})
		return
	}
	get, put := reader(x), writer(y)
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			var tile [512]float32
			for i := from; i < to; i += len(tile) {
				t := tile[:min(len(tile), to-i)]
				get(i, t)
				put(i, t)
			}
		})
		return nil
	})
}

// Zero clears y, of any type and shape.
func (c CPU) Zero(s device.Stream, y tensor.Tensor) {
	const op = "zero"
	if y.None() {
		check.Fail(op, "y is none")
	}
	yv := y.Buf.Bytes()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(len(yv), 4*grain, func(_, from, to int) { clear(yv[from:to]) })
		return nil
	})
}

// reader returns a function that widens x[i:i+len(t)] to t.
func reader(x tensor.Tensor) func(i int, t []float32) {
	if x.DType == dtype.F32 {
		v := x.F32()
		return func(i int, t []float32) { copy(t, v[i:]) }
	}
	v, to := device.View[uint16](x.Buf), dtype.BF16To
	if x.DType == dtype.F16 {
		to = dtype.F16To
	}
	return func(i int, t []float32) {
		for j, h := range v[i : i+len(t)] {
			t[j] = to(h)
		}
	}
}

// writer returns a function that rounds t to y[i:i+len(t)].
func writer(y tensor.Tensor) func(i int, t []float32) {
	if y.DType == dtype.F32 {
		v := y.F32()
		return func(i int, t []float32) { copy(v[i:], t) }
	}
	v, from := device.View[uint16](y.Buf), dtype.BF16From
	if y.DType == dtype.F16 {
		from = dtype.F16From
	}
	return func(i int, t []float32) {
		v := v[i : i+len(t)]
		for j, f := range t {
			v[j] = from(f)
		}
	}
}
