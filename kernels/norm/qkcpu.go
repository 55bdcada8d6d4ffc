package norm

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// QKNorm writes y = x with each head of queries and of keys normalised by itself:
// x*rstd*w with rstd = 1/sqrt(mean(x²)+eps), the mean over D; w is wq for queries, wk for
// keys. x, y [N,H+2K,D] f32, H = heads, wq, wk [D] f32. y is not x.
func (c CPU) QKNorm(s device.Stream, y, x, wq, wk tensor.Tensor, heads int, eps float32) {
	const op = "qk norm"
	h := qkDims(op, arg{"x", x}, arg{"y", y}, heads, []arg{{"wq", wq}, {"wk", wk}}, nil)
	fresh(op, y, x)
	yv, xv, wqv, wkv := y.F32(), x.F32(), wq.F32(), wk.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(h.n, rowGrain, func(_, from, to int) {
			for i := from; i < to; i++ {
				for e := range h.all {
					at := (i*h.all + e) * h.d
					yr, xr := yv[at:at+h.d], xv[at:at+h.d]
					if e >= h.normed() {
						copy(yr, xr)
						continue
					}
					r, w := h.rstd(xr, eps), h.weight(e, wqv, wkv)
					for j, v := range xr {
						yr[j] = v * r * w[j]
					}
				}
			}
		})
		return nil
	})
}

// QKNormBackward turns dx from the gradient of QKNorm's y into that of its x, and writes
// dwq (+)= and dwk (+)= the sums over rows and heads of dy*x̂, where x̂ = x*rstd. dx, x
// [N,H+2K,D], H = heads; dwq and dwk are optional.
func (c CPU) QKNormBackward(s device.Stream, dx, dwq, dwk, x, wq, wk tensor.Tensor, heads int, eps float32, addQ, addK bool) {
	const op = "qk norm backward"
	h := qkDims(op, arg{"x", x}, arg{"dx", dx}, heads, []arg{{"wq", wq}, {"wk", wk}}, []arg{{"dwq", dwq}, {"dwk", dwk}})
	dxv, xv, wqv, wkv := dx.F32(), x.F32(), wq.F32(), wk.F32()
	sums := []headSum{{grad: dwq, from: 0, to: h.queries, add: addQ}, {grad: dwk, from: h.queries, to: h.normed(), add: addK}}
	workers.Enqueue(s, op, func() error {
		rstd := make([]float32, h.n*h.normed())
		c.pool.Range(h.n, rowGrain, func(_, from, to int) {
			for i := from; i < to; i++ {
				for e := range h.normed() {
					at := (i*h.all + e) * h.d
					rstd[i*h.normed()+e] = h.rstd(xv[at:at+h.d], eps)
				}
			}
		})
		for _, sum := range sums { // before dx, which overwrites dy
			if !sum.grad.None() {
				c.sumHeads(h, sum, dxv, xv, rstd)
			}
		}
		c.pool.Range(h.n, rowGrain, func(_, from, to int) {
			g := make([]float32, h.d)
			for i := from; i < to; i++ {
				for e := range h.normed() {
					at := (i*h.all + e) * h.d
					dr, xr, r, w := dxv[at:at+h.d], xv[at:at+h.d], rstd[i*h.normed()+e], h.weight(e, wqv, wkv)
					for j := range g {
						g[j] = dr[j] * w[j]
					}
					// The mean of g*x̂, times another rstd.
					m := float32(vec.Dot(g, xr) / float64(h.d) * float64(r) * float64(r))
					for j := range g {
						dr[j] = r * (g[j] - xr[j]*m)
					}
				}
			}
		})
		return nil
	})
}

// headSum is the gradient of a weight that heads from to to share.
type headSum struct {
	grad     tensor.Tensor
	from, to int
	add      bool
}

// sumHeads writes one gradient from dy and x, whose normed heads have rstd[N,H+K].
func (c CPU) sumHeads(h headed, s headSum, dy, x, rstd []float32) {
	out := s.grad.F32()
	c.columns(h.n, h.d, func(from, to int) {
		var sums [width]float64
		for i := range h.n {
			for e := s.from; e < s.to; e++ {
				at := (i*h.all + e) * h.d
				vec.AddProducts(&sums, dy[at+from:at+to], x[at+from:at+to], 0, rstd[i*h.normed()+e])
			}
		}
		store(out[from:to], &sums, s.add)
	})
}

// rstd is that of one head.
func (h headed) rstd(x []float32, eps float32) float32 {
	return float32(1 / math.Sqrt(vec.Dot(x, x)/float64(h.d)+float64(eps)))
}

// weight is that of head e.
func (h headed) weight(e int, wq, wk []float32) []float32 {
	if e < h.queries {
		return wq
	}
	return wk
}
