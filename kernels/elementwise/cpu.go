package elementwise

import (
	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// CPU computes on the host.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

const (
	grain = 1 << 14 // elements a task
	tile  = 1 << 10 // elements converted at a time
)

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
	yv, xv, ySize, xSize := y.Buf.Bytes(), x.Buf.Bytes(), y.DType.Size(), x.DType.Size()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			wide := make([]float32, min(tile, to-from))
			for i := from; i < to; i += tile {
				end := min(i+tile, to)
				vec.Widen(x.DType, wide[:end-i], xv[i*xSize:end*xSize])
				vec.Narrow(y.DType, yv[i*ySize:end*ySize], wide[:end-i])
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
