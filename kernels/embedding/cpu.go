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

// Embed writes y[N,C] (+)= table[V,C] rows ids[N]. An id outside the table is an
// error of the stream.
func (c CPU) Embed(s device.Stream, y, table, ids tensor.Tensor, add bool) {
	const op = "embed"
	n, v, d := dims(op, "y", "table", y, table, ids)
	yv, tv, iv := y.F32(), table.F32(), ids.I32()
	workers.Enqueue(s, op, func() error {
		if err := inside(iv, v); err != nil {
			return err
		}
		c.pool.Range(n, 64, func(_, from, to int) {
			for i := from; i < to; i++ {
				dst, src := yv[i*d:(i+1)*d], tv[int(iv[i])*d:]
				if add {
					accumulate(dst, src)
				} else {
					copy(dst, src)
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
	n, v, d := dims(op, "dy", "dtable", dy, dtable, ids)
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
