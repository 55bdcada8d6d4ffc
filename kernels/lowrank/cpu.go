package lowrank

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

const grain = 1 << 12 // elements a task

// Spread writes y[O,G*R]: scale times the factors x[M,R], where factor g has the rows
// from blocks[g][0] to blocks[g][1] and the columns from g*R on, and 0 elsewhere. All
// f32. blocks ascend, and must stay as they are until s has passed.
func (c CPU) Spread(s device.Stream, y, x tensor.Tensor, blocks [][2]int, scale float32) {
	const op = "spread"
	_, r, o := dims(op, "x", x, "y", y, blocks)
	yv, xv, width := y.F32(), x.F32(), len(blocks)*r
	workers.Enqueue(s, op, func() error {
		c.pool.Range(o, max(grain/max(width, 1), 1), func(_, from, to int) {
			clear(yv[from*width : to*width])
			overlap(blocks, from, to, func(g, row, at int) {
				for j, v := range xv[at*r : (at+1)*r] {
					yv[row*width+g*r+j] = scale * v
				}
			})
		})
		return nil
	})
}

// Collect writes y[M,R] (+)= scale times the factors' places in x[O,G*R]; see Spread.
// All f32.
func (c CPU) Collect(s device.Stream, y, x tensor.Tensor, blocks [][2]int, scale float32, add bool) {
	const op = "collect"
	_, r, o := dims(op, "y", y, "x", x, blocks)
	yv, xv, width := y.F32(), x.F32(), len(blocks)*r
	workers.Enqueue(s, op, func() error {
		c.pool.Range(o, max(grain/max(width, 1), 1), func(_, from, to int) {
			overlap(blocks, from, to, func(g, row, at int) {
				out, in := yv[at*r:(at+1)*r], xv[row*width+g*r:]
				for j := range out {
					v := scale * in[j]
					if add {
						v += out[j]
					}
					out[j] = v
				}
			})
		})
		return nil
	})
}

// overlap calls f with each row in [from, to) that a factor has: which one, the row,
// and the row of the factors one behind the other.
func overlap(blocks [][2]int, from, to int, f func(g, row, at int)) {
	first := 0 // of the factor's rows among all
	for g, b := range blocks {
		for row := max(from, b[0]); row < min(to, b[1]); row++ {
			f(g, row, first+row-b[0])
		}
		first += b[1] - b[0]
	}
}
