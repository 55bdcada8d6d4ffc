package norm

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f32, with every sum in f64.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

const (
	rowGrain = 16          // rows a task
	width    = vec.Columns // columns a task, where sums run over rows
)

// RMSNorm writes y = x*rstd*w with rstd = 1/sqrt(mean(x²)+eps), the mean over
// C. x, y [N,C], w [C], rstd [N], all f32. y may be x.
func (c CPU) RMSNorm(s device.Stream, y, rstd, x, w tensor.Tensor, eps float32) {
	const op = "rmsnorm"
	n, d := dims(op, []arg{{"x", x}, {"y", y}}, []arg{{"w", w}}, nil, []arg{{"rstd", rstd}})
	yv, rv, xv, wv := y.F32(), rstd.F32(), x.F32(), w.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, rowGrain, func(_, from, to int) {
			for i := from; i < to; i++ {
				xr, yr := xv[i*d:(i+1)*d], yv[i*d:(i+1)*d]
				r := float32(1 / math.Sqrt(vec.Dot(xr, xr)/float64(d)+float64(eps)))
				rv[i] = r
				for j, v := range xr {
					yr[j] = v * r * wv[j]
				}
			}
		})
		return nil
	})
}

// RMSNormBackward writes dx (+)= rstd*(dy*w - x̂*mean(dy*w*x̂)) and dw (+)= the
// sum over rows of dy*x̂, where x̂ = x*rstd. dw is optional. dx may be dy.
func (c CPU) RMSNormBackward(s device.Stream, dx, dw, dy, x, w, rstd tensor.Tensor, addX, addW bool) {
	const op = "rmsnorm backward"
	n, d := dims(op, []arg{{"x", x}, {"dx", dx}, {"dy", dy}}, []arg{{"w", w}}, []arg{{"dw", dw}}, []arg{{"rstd", rstd}})
	if addX && sameMemory(dx, dy) {
		check.Fail(op, "dx is dy and cannot be added to")
	}
	dxv, dyv, xv, wv, rv := dx.F32(), dy.F32(), x.F32(), w.F32(), rstd.F32()
	var dwv []float32
	if !dw.None() {
		dwv = dw.F32()
	}
	workers.Enqueue(s, op, func() error {
		if dwv != nil { // before dx, which may overwrite dy
			c.columns(n, d, func(from, to int) {
				var sums [width]float64
				for i := range n {
					vec.AddProducts(&sums, dyv[i*d+from:i*d+to], xv[i*d+from:i*d+to], 0, rv[i])
				}
				store(dwv[from:to], &sums, addW)
			})
		}
		c.pool.Range(n, rowGrain, func(_, from, to int) {
			g := make([]float32, d)
			for i := from; i < to; i++ {
				dxr, dyr, xr, r := dxv[i*d:(i+1)*d], dyv[i*d:(i+1)*d], xv[i*d:(i+1)*d], rv[i]
				for j := range g {
					g[j] = dyr[j] * wv[j]
				}
				// The mean of g*x̂, times another rstd.
				m := float32(vec.Dot(g, xr) / float64(d) * float64(r) * float64(r))
				for j := range g {
					g[j] = r * (g[j] - xr[j]*m)
				}
				store32(dxr, g, addX)
			}
		})
		return nil
	})
}

// LayerNorm writes y = (x-mean)*rstd*w + b with rstd = 1/sqrt(var+eps), mean and
// biased variance over C. x, y [N,C], w, b [C], mean, rstd [N], all f32. y may be x.
func (c CPU) LayerNorm(s device.Stream, y, mean, rstd, x, w, b tensor.Tensor, eps float32) {
	const op = "layernorm"
	n, d := dims(op, []arg{{"x", x}, {"y", y}}, []arg{{"w", w}, {"b", b}}, nil, []arg{{"mean", mean}, {"rstd", rstd}})
	yv, mv, rv, xv, wv, bv := y.F32(), mean.F32(), rstd.F32(), x.F32(), w.F32(), b.F32()
	workers.Enqueue(s, op, func() error {
		c.pool.Range(n, rowGrain, func(_, from, to int) {
			for i := from; i < to; i++ {
				xr, yr := xv[i*d:(i+1)*d], yv[i*d:(i+1)*d]
				m := float32(vec.Sum(xr) / float64(d))
				for j, v := range xr {
					yr[j] = v - m
				}
				r := float32(1 / math.Sqrt(vec.Dot(yr, yr)/float64(d)+float64(eps)))
				mv[i], rv[i] = m, r
				for j, v := range yr {
					yr[j] = v*r*wv[j] + bv[j]
				}
			}
		})
		return nil
	})
}

// LayerNormBackward writes dx (+)= rstd*(g - mean(g) - x̂*mean(g*x̂)) with
// g = dy*w and x̂ = (x-mean)*rstd, and dw, db (+)= the sums over rows of dy*x̂
// and dy. dw and db are optional, both or none. dx may be dy.
func (c CPU) LayerNormBackward(s device.Stream, dx, dw, db, dy, x, w, mean, rstd tensor.Tensor, addX, addW bool) {
	const op = "layernorm backward"
	n, d := dims(op, []arg{{"x", x}, {"dx", dx}, {"dy", dy}}, []arg{{"w", w}}, []arg{{"dw", dw}, {"db", db}},
		[]arg{{"mean", mean}, {"rstd", rstd}})
	if dw.None() != db.None() {
		check.Fail(op, "dw is %v and db is %v: want both or none", dw, db)
	}
	if addX && sameMemory(dx, dy) {
		check.Fail(op, "dx is dy and cannot be added to")
	}
	dxv, dyv, xv, wv, mv, rv := dx.F32(), dy.F32(), x.F32(), w.F32(), mean.F32(), rstd.F32()
	var dwv, dbv []float32
	if !dw.None() {
		dwv, dbv = dw.F32(), db.F32()
	}
	workers.Enqueue(s, op, func() error {
		if dwv != nil { // before dx, which may overwrite dy
			c.columns(n, d, func(from, to int) {
				var sw, sb [width]float64
				for i := range n {
					g := dyv[i*d+from : i*d+to]
					vec.AddColumns(&sb, g)
					vec.AddProducts(&sw, g, xv[i*d+from:i*d+to], mv[i], rv[i])
				}
				store(dwv[from:to], &sw, addW)
				store(dbv[from:to], &sb, addW)
			})
		}
		c.pool.Range(n, rowGrain, func(_, from, to int) {
			g, xh := make([]float32, d), make([]float32, d)
			for i := from; i < to; i++ {
				dxr, dyr, xr, m, r := dxv[i*d:(i+1)*d], dyv[i*d:(i+1)*d], xv[i*d:(i+1)*d], mv[i], rv[i]
				for j := range g {
					g[j], xh[j] = dyr[j]*wv[j], (xr[j]-m)*r
				}
				mg, mgx := float32(vec.Sum(g)/float64(d)), float32(vec.Dot(g, xh)/float64(d))
				for j := range g {
					g[j] = r * (g[j] - mg - xh[j]*mgx)
				}
				store32(dxr, g, addX)
			}
		})
		return nil
	})
}

// columns runs f on ranges of at most width columns.
func (c CPU) columns(n, d int, f func(from, to int)) {
	c.pool.Run((d+width-1)/width, func(_, task int) { f(task*width, min((task+1)*width, d)) })
}

// store writes dst (+)= sums, rounding once.
func store(dst []float32, sums *[width]float64, add bool) {
	for j := range dst {
		v := sums[j]
		if add {
			v += float64(dst[j])
		}
		dst[j] = float32(v)
	}
}

// store32 writes dst (+)= x.
func store32(dst, x []float32, add bool) {
	if !add {
		copy(dst, x)
		return
	}
	for j, v := range x {
		dst[j] += v
	}
}

func sameMemory(a, b tensor.Tensor) bool { return a.Buf.Len() > 0 && a.Buf.Addr() == b.Buf.Addr() }
