package sum

import (
	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f64. Pieces of a fixed size are summed first and
// then added in order.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

// Sum writes out[1] f64 (+)= the sum of x, f32 of any shape.
func (c CPU) Sum(s device.Stream, out, x tensor.Tensor, add bool) {
	c.enqueue(s, "sum", out, x, add, vec.Sum)
}

// SumSquares writes out[1] f64 (+)= the sum of x², x f32 of any shape. A NaN or an
// infinity in x shows in the sum.
func (c CPU) SumSquares(s device.Stream, out, x tensor.Tensor, add bool) {
	c.enqueue(s, "sum of squares", out, x, add, func(x []float32) float64 { return vec.Dot(x, x) })
}

func (c CPU) enqueue(s device.Stream, op string, out, x tensor.Tensor, add bool, sum func(x []float32) float64) {
	n := dims(op, out, x)
	ov, xv := out.F64(), x.F32()
	workers.Enqueue(s, op, func() error {
		total := c.pool.Sum(n, func(from, to int) float64 { return sum(xv[from:to]) })
		if add {
			total += ov[0]
		}
		ov[0] = total
		return nil
	})
}
