package embedding

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

// Embed writes y[N,C] = table[V,C] rows ids[N]. An id outside the table is an
// error of the stream.
func (c CPU) Embed(s device.Stream, y, table, ids tensor.Tensor) {
	const op = "embed"
	n, v, d := dims(op, "y", "table", y, table, ids, false)
	yv, tv, iv := y.F32(), table.F32(), ids.I32()
	workers.Enqueue(s, op, func() error {
		if err := inside(iv, v); err != nil {
			return err
		}
		c.pool.Range(n, 64, func(_, from, to int) {
			for i := from; i < to; i++ {
				copy(yv[i*d:(i+1)*d], tv[int(iv[i])*d:])
			}
		})
		return nil
	})
}

// Positions adds table[pos+t] to each y[b,t]: y[B,T,C], table[P,C].
func (c CPU) Positions(s device.Stream, y, table tensor.Tensor, pos int) {
	const op = "positions"
	b, t, _, d := positionDims(op, "y", "table", y, table, pos, false)
	yv, tv := y.F32(), table.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(b*t, 64, func(_, from, to int) {
			for i := from; i < to; i++ {
				accumulate(yv[i*d:(i+1)*d], tv[(pos+i%t)*d:])
			}
		})
		return nil
	})
}

// PositionsBackward writes or adds to dtable[t] the sum of dy[b,t] over b, in
// order: dy[B,T,C], dtable[P,C]. Without add the rows from T on are cleared.
func (c CPU) PositionsBackward(s device.Stream, dtable, dy tensor.Tensor, add bool) {
	const op = "positions backward"
	b, t, p, d := positionDims(op, "dy", "dtable", dy, dtable, 0, true)
	tv, dv := dtable.F32(), dy.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(p, 16, func(_, from, to int) {
			for r := from; r < to; r++ {
				row := tv[r*d : (r+1)*d]
				if !add {
					clear(row)
				}
				for i := 0; i < b && r < t; i++ {
					accumulate(row, dv[(i*t+r)*d:])
				}
			}
		})
		return nil
	})
}

// EmbedBackward adds dy's rows to the rows ids of dtable[V,C], in the order of N
// for each id. With add false all of dtable is cleared first. Work is split by
// columns, so that order does not depend on the workers.
func (c CPU) EmbedBackward(s device.Stream, dtable, dy, ids tensor.Tensor, add bool) {
	const op = "embed backward"
	n, v, d := dims(op, "dy", "dtable", dy, dtable, ids, true)
	tv, dv, iv := dtable.F32(), dy.F32(), ids.I32()
	workers.Enqueue(s, op, func() error {
		if err := inside(iv, v); err != nil {
			return err
		}
		if !add {
			c.pool.Range(len(tv), 1<<16, func(_, from, to int) { clear(tv[from:to]) })
		}
		c.pool.Range(d, 32, func(_, from, to int) {
			for i := range n {
				accumulate(tv[int(iv[i])*d+from:int(iv[i])*d+to], dv[i*d+from:i*d+to])
			}
		})
		return nil
	})
}

// accumulate writes dst += src, over dst's length.
func accumulate(dst, src []float32) {
	src = src[:len(dst)]
	for j := range dst {
		dst[j] += src[j]
	}
}

func inside(ids []int32, v int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= v {
			return outside(i, id, v)
		}
	}
	return nil
}
