package activation

import (
	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f32.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

const grain = 4096 // elements a task

// SwiGLU writes y[N,F] = silu(gate)*up, silu(g) = g/(1+exp(-g)), where x[N,2F] is
// gate and up side by side. f32.
func (c CPU) SwiGLU(s device.Stream, y, x tensor.Tensor) {
	const op = "swiglu"
	n, f := gatedDims(op, "y", "x", y, x)
	yv, xv := y.F32(), x.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, rows(f), func(_, from, to int) {
			for r := from; r < to; r++ {
				both := xv[2*f*r : 2*f*(r+1)]
				vec.SwiGLU(yv[f*r:f*(r+1)], both[:f], both[f:])
			}
		})
		return nil
	})
}

// SwiGLUBackward overwrites dx[N,2F]: on the left dgate = dy*up*silu'(gate), on the
// right dup = dy*silu(gate). dx may be x.
func (c CPU) SwiGLUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	const op = "swiglu backward"
	n, f := gatedDims(op, "dy", "x", dy, x)
	gatedDims(op, "dy", "dx", dy, dx)
	dxv, dyv, xv := dx.F32(), dy.F32(), x.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, rows(f), func(_, from, to int) {
			for r := from; r < to; r++ {
				both, out := xv[2*f*r:2*f*(r+1)], dxv[2*f*r:2*f*(r+1)]
				vec.SwiGLUGrad(out[:f], out[f:], dyv[f*r:f*(r+1)], both[:f], both[f:])
			}
		})
		return nil
	})
}

// rows is how many rows of f channels make a task.
func rows(f int) int { return max(1, grain/max(f, 1)) }

// GELU writes y = x/2*(1+tanh(u)), u = sqrt(2/pi)*(x + 0.044715x³): GPT-2's
// approximation. Any shape, f32. y may be x.
func (c CPU) GELU(s device.Stream, y, x tensor.Tensor) {
	const op = "gelu"
	n := alike(op, []string{"x", "y"}, x, y)
	yv, xv := y.F32(), x.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			vec.GELU(yv[from:to], xv[from:to])
		})
		return nil
	})
}

// GELUBackward overwrites dx = dy*gelu'(x). dx may be dy, or x.
func (c CPU) GELUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	const op = "gelu backward"
	n := alike(op, []string{"x", "dy", "dx"}, x, dy, dx)
	dxv, dyv, xv := dx.F32(), dy.F32(), x.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			vec.GELUGrad(dxv[from:to], dyv[from:to], xv[from:to])
		})
		return nil
	})
}
