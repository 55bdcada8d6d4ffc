package dropout

import (
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

const grain = 1 << 13 // elements a task

// Dropout writes or adds to y[N,I]: 0 with probability p, else x/(1-p). Channels 2j
// and 2j+1 of row n are dropped by the upper and the lower half of element j of a
// stream of numbers, which key and the row's number, row+n, name. y may be x, where
// it does not add. All f32.
func (c CPU) Dropout(s device.Stream, y, x tensor.Tensor, p float64, key, row uint64, add bool) {
	const op = "dropout"
	n, width := dims(op, y, x, p)
	yv, xv := y.F32(), x.F32()
	below, scale := threshold(p), float32(1/(1-p))
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, max(grain/max(width, 1), 1), func(_, from, to int) {
			for r := from; r < to; r++ {
				stream := draw(key, row+uint64(r))
				drop(yv[r*width:(r+1)*width], xv[r*width:(r+1)*width], stream, below, scale, add)
			}
		})
		return nil
	})
}

// drop is Dropout of one row.
func drop(y, x []float32, stream uint64, below uint32, scale float32, add bool) {
	var bits uint64
	for i, v := range x {
		if i%2 == 0 {
			bits = draw(stream, uint64(i/2))
		}
		kept := v * scale
		if uint32(bits>>32) < below {
			kept = 0
		}
		bits <<= 32
		if add {
			kept += y[i]
		}
		y[i] = kept
	}
}
