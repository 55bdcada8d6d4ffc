package attention

import (
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// RoPE rotates the first heads of x[B,T,E,D] in place: the pair (i, i+D/2) of
// position t turns by the angle whose cosine and sine are cos[pos+t, i] and
// sin[pos+t, i]. inverse turns back, which is the gradient. x, cos, sin f32.
func (c *CPU) RoPE(s device.Stream, x, cos, sin tensor.Tensor, heads, pos int, inverse bool) {
	const op = "rope"
	b, t, e, d := ropeDims(op, x, cos, sin, heads, pos)
	xv, cv, sv := x.F32(), cos.F32(), sin.F32()
	sign := float32(1)
	if inverse {
		sign = -1
	}
	workers.Enqueue(s, op, func() error {
		half := d / 2
		c.pool.Range(b*t, 16, func(_, from, to int) {
			for r := from; r < to; r++ {
				at := (pos + r%t) * half
				cr, sr := cv[at:at+half], sv[at:at+half]
				for head := range heads {
					row := xv[(r*e+head)*d : (r*e+head+1)*d]
					lo, hi := row[:half], row[half:]
					for i, a := range lo {
						b, sn := hi[i], sign*sr[i]
						lo[i] = a*cr[i] - b*sn
						hi[i] = b*cr[i] + a*sn
					}
				}
			}
		})
		return nil
	})
}
