package activation

import (
	"math"

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
			for i := from; i < to; i++ {
				yv[i] = gv[i] * sigmoid(gv[i]) * uv[i]
			}
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
			for i := from; i < to; i++ {
				d, g, u := dyv[i], gv[i], uv[i]
				sig := sigmoid(g)
				silu := g * sig
				duv[i] = d * silu
				dgv[i] = d * u * (sig + silu*(1-sig))
			}
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
			for i := from; i < to; i++ {
				x := xv[i]
				yv[i] = x * sigmoid(2*geluScale*(x+geluCubic*x*x*x))
			}
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
			for i := from; i < to; i++ {
				x := xv[i]
				sig := sigmoid(2 * geluScale * (x + geluCubic*x*x*x))
				dxv[i] = dyv[i] * (sig + x*sig*(1-sig)*2*geluScale*(1+3*geluCubic*x*x))
			}
		})
		return nil
	})
}

const (
	geluScale = 0.79788456080286535588 // sqrt(2/pi)
	geluCubic = 0.044715
)

// sigmoid is 1/(1+exp(-x)). (1+tanh(u))/2 is sigmoid(2u).
func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }
