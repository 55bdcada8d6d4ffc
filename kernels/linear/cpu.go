package linear

import (
	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/vec"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host, in f32, with bias sums in f64.
type CPU struct {
	pool *workers.Pool
	mul  gemm.Backend
}

// NewCPU computes with mul on the workers of pool.
func NewCPU(pool *workers.Pool, mul gemm.Backend) CPU { return CPU{pool, mul} }

// Linear writes y[N,O] = x[N,I]·w[O,I]ᵀ + b[O] + r[N,O]; b and r are optional, r
// may be y. All f32.
func (c CPU) Linear(s device.Stream, y, x, w, b, r tensor.Tensor) {
	const op = "linear"
	n, i, o := forwardDims(op, y, x, w, b, r)
	yv, xv, wv := y.F32(), x.F32(), w.F32()
	var bv, rv []float32
	if !b.None() {
		bv = b.F32()
	}
	if !r.None() {
		rv = r.F32()
	}
	workers.Enqueue(s, op, func() error {
		c.split(n, o, func(r0, r1, c0, c1 int) {
			for row := r0; row < r1 && (bv != nil || rv != nil); row++ {
				from, to := row*o+c0, row*o+c1
				switch {
				case rv == nil:
					copy(yv[from:to], bv[c0:c1])
				case bv == nil:
					copy(yv[from:to], rv[from:to])
				default:
					for j, b := range bv[c0:c1] {
						yv[from+j] = rv[from+j] + b
					}
				}
			}
			c.mul.Gemm(false, true, r1-r0, c1-c0, i, xv[r0*i:], i, wv[c0*i:], i, bv != nil || rv != nil, yv[r0*o+c0:], o)
		})
		return nil
	})
}

// LinearBackwardX writes dx[N,I] (+)= dy[N,O]·w[O,I]. All f32.
func (c CPU) LinearBackwardX(s device.Stream, dx, dy, w tensor.Tensor, add bool) {
	const op = "linear backward x"
	n, i, o := dims(op, "dy", "dx", dy, dx, w)
	dxv, dyv, wv := dx.F32(), dy.F32(), w.F32()
	workers.Enqueue(s, op, func() error {
		c.split(n, i, func(r0, r1, c0, c1 int) {
			c.mul.Gemm(false, false, r1-r0, c1-c0, o, dyv[r0*o:], o, wv[c0:], i, add, dxv[r0*i+c0:], i)
		})
		return nil
	})
}

// LinearBackwardW writes dw[O,I] (+)= dy[N,O]ᵀ·x[N,I]. All f32.
func (c CPU) LinearBackwardW(s device.Stream, dw, dy, x tensor.Tensor, add bool) {
	const op = "linear backward w"
	n, i, o := gradDims(op, dw, dy, x)
	dwv, dyv, xv := dw.F32(), dy.F32(), x.F32()
	workers.Enqueue(s, op, func() error {
		c.split(o, i, func(r0, r1, c0, c1 int) {
			c.mul.Gemm(true, false, r1-r0, c1-c0, n, dyv[r0:], o, xv[c0:], i, add, dwv[r0*i+c0:], i)
		})
		return nil
	})
}

// BiasBackward writes db[O] (+)= the column sums of dy[N,O], summed in f64.
func (c CPU) BiasBackward(s device.Stream, db, dy tensor.Tensor, add bool) {
	const op = "bias backward"
	n, o := biasDims(op, db, dy)
	dbv, dyv := db.F32(), dy.F32()
	workers.Enqueue(s, op, func() error {
		const width = vec.Columns
		c.pool.Run((o+width-1)/width, func(_, task int) {
			var sums [width]float64
			from, to := task*width, min((task+1)*width, o)
			for r := range n {
				vec.AddColumns(&sums, dyv[r*o+from:r*o+to])
			}
			for j := range dbv[from:to] {
				if add {
					sums[j] += float64(dbv[from+j])
				}
				dbv[from+j] = float32(sums[j])
			}
		})
		return nil
	})
}

// split cuts an output of rows × cols along its longer side, one part a worker.
func (c CPU) split(rows, cols int, f func(r0, r1, c0, c1 int)) {
	// Parts are whole tiles, and no part has so few rows that the product would be
	// computed in another way: more than gemm.FewRows, unless all rows are that few.
	const unit = 32
	long := max(rows, cols)
	parts := min(c.pool.Threads(), max(long/unit, 1))
	cut := func(part int) int {
		if part == parts {
			return long
		}
		return long * part / parts / unit * unit
	}
	c.pool.Run(parts, func(_, part int) {
		if from, to := cut(part), cut(part+1); rows >= cols {
			f(from, to, 0, cols)
		} else {
			f(0, rows, from, to)
		}
	})
}
