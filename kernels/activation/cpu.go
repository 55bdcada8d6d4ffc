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

// SwiGLU writes y = silu(gate)*up, silu(g) = g/(1+exp(-g)). All of one shape,
// f32. y may be gate or up.
func (c CPU) SwiGLU(s device.Stream, y, gate, up tensor.Tensor) {
	const op = "swiglu"
	n := alike(op, []string{"y", "gate", "up"}, y, gate, up)
	yv, gv, uv := y.F32(), gate.F32(), up.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			vec.SwiGLU(yv[from:to], gv[from:to], uv[from:to])
		})
		return nil
	})
}

// SwiGLUBackward overwrites dgate = dy*up*silu'(gate) and dup = dy*silu(gate).
// dgate and dup may be gate and up, in that order.
func (c CPU) SwiGLUBackward(s device.Stream, dgate, dup, dy, gate, up tensor.Tensor) {
	const op = "swiglu backward"
	n := alike(op, []string{"dy", "gate", "up", "dgate", "dup"}, dy, gate, up, dgate, dup)
	dgv, duv, dyv, gv, uv := dgate.F32(), dup.F32(), dy.F32(), gate.F32(), up.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, grain, func(_, from, to int) {
			vec.SwiGLUGrad(dgv[from:to], duv[from:to], dyv[from:to], gv[from:to], uv[from:to])
		})
		return nil
	})
}

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
