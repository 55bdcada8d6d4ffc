package loss

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f32, with sums and logarithms in f64.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

// CrossEntropy writes loss[N] = -log softmax(logits[N,V])[targets[N]], 0 where
// the target is negative. With grad, logits is overwritten by
// scale*(softmax - onehot), zeros where the target is negative. A NaN or +Inf in
// a row makes its loss and its gradient NaN. A target of V or more is an error
// of the stream.
func (c CPU) CrossEntropy(s device.Stream, loss, logits, targets tensor.Tensor, scale float32, grad bool) {
	const op = "cross entropy"
	n, v := dims(op, loss, logits, targets)
	lv, xv, tv := loss.F32(), logits.F32(), targets.I32()
	workers.Enqueue(s, op, func() error {
		for i, t := range tv {
			if int(t) >= v {
				return outside(i, t, v)
			}
		}
		c.pool.Range(n, max(1, 4096/v), func(_, from, to int) {
			var kept []float32
			if !grad {
				kept = make([]float32, tile)
			}
			for i := from; i < to; i++ {
				lv[i] = row(xv[i*v:(i+1)*v], int(tv[i]), scale, kept)
			}
		})
		return nil
	})
}

// row is the loss of one row, whose logits it overwrites by the gradient; with
// kept, of tile elements, it leaves them alone.
func row(x []float32, target int, scale float32, kept []float32) float32 {
	grad := kept == nil
	if target < 0 {
		if grad {
			clear(x)
		}
		return 0
	}
	top, hit := vec.Max(x), x[target]
	var sum float64
	for at := 0; at < len(x); at += tile {
		part := x[at:min(at+tile, len(x))]
		if !grad {
			part = kept[:copy(kept, part)]
		}
		sum += vec.ExpSum(part, 1, top)
	}
	if grad {
		f := float32(float64(scale) / sum)
		for j := range x {
			x[j] *= f
		}
		x[target] -= scale
	}
	return float32(math.Log(sum) + float64(top) - float64(hit))
}

// tile is how many exponentials are summed at a time.
const tile = 1024
