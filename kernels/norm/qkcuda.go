package norm

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed qk.cu
var qkSource string

const (
	qkWarps = 8             // of every block
	qkMost  = warp * vector // channels of a head in the vector kernels
)

// headLanes is how many lanes take a head of d channels, and whether by vectors.
func headLanes(d int, ts ...tensor.Tensor) (lanes, vectors int) {
	if d%vector != 0 || d > qkMost || !nv.Aligned(16, ts...) {
		return warp, 0
	}
	for lanes = 1; lanes*vector < d; lanes *= 2 {
	}
	return lanes, 1
}

type qkForwardArgs struct {
	y, x, wq, wk            uintptr
	items                   int64
	all, queries, normed, d int32
	lanes                   int32
	inverse, eps            float32
}

// QKNorm writes y = x with each head of queries and of keys normalised by itself:
// x*rstd*w with rstd = 1/sqrt(mean(x²)+eps), the mean over D; w is wq for queries, wk for
// keys. x, y [N,H+2K,D] bf16, H = heads, wq, wk [D] bf16. y is not x.
func (c CUDA) QKNorm(s device.Stream, y, x, wq, wk tensor.Tensor, heads int, eps float32) {
	const op = "qk norm"
	h := qkDims(op, arg{"x", x}, arg{"y", y}, heads, []arg{{"wq", wq}, {"wk", wk}}, nil)
	check.Is(op, "wq", wq, dtype.BF16, h.d)
	fresh(op, y, x)
	if h.n == 0 {
		return
	}
	on := nv.Stream(s)
	lanes, v := headLanes(h.d, y, x, wq, wk)
	g, err := c.heads(c.qk[v], h, lanes)
	if err != nil {
		on.Fail(err)
		return
	}
	cuda.Launch(on, c.qk[v], g, &qkForwardArgs{
		y: y.Buf.Addr(), x: x.Buf.Addr(), wq: wq.Buf.Addr(), wk: wk.Buf.Addr(), items: int64(h.n) * int64(h.all),
		all: int32(h.all), queries: int32(h.queries), normed: int32(h.normed()), d: int32(h.d),
		lanes: int32(lanes), inverse: 1 / float32(h.d), eps: eps,
	})
}

type qkBackwardArgs struct {
	dx, x, wq, wk, dwq, dwk uintptr
	items                   int64
	all, queries, normed, d int32
	lanes                   int32
	inverse, eps            float32
}

// QKNormBackward turns dx from the gradient of QKNorm's y into that of its x, and writes
// dwq (+)= and dwk (+)= the sums over rows and heads of dy*x̂, where x̂ = x*rstd. dx, x
// [N,H+2K,D], H = heads; dwq and dwk, bf16 or f32, are optional.
func (c CUDA) QKNormBackward(s device.Stream, dx, dwq, dwk, x, wq, wk tensor.Tensor, heads int, eps float32, addQ, addK bool) {
	const op = "qk norm backward"
	h := qkDims(op, arg{"x", x}, arg{"dx", dx}, heads, []arg{{"wq", wq}, {"wk", wk}}, []arg{{"dwq", dwq}, {"dwk", dwk}})
	check.Is(op, "wq", wq, dtype.BF16, h.d)
	on := nv.Stream(s)
	if h.n == 0 {
		for _, g := range []headSum{{grad: dwq, add: addQ}, {grad: dwk, add: addK}} {
			if !g.grad.None() && !g.add {
				on.Clear(g.grad.Buf)
			}
		}
		return
	}
	lanes, v := headLanes(h.d, dx, x, wq, wk)
	g, err := c.heads(c.qkBackward[v], h, lanes)
	if err != nil {
		on.Fail(err)
		return
	}
	a := qkBackwardArgs{
		dx: dx.Buf.Addr(), x: x.Buf.Addr(), wq: wq.Buf.Addr(), wk: wk.Buf.Addr(), items: int64(h.n) * int64(h.all),
		all: int32(h.all), queries: int32(h.queries), normed: int32(h.normed()), d: int32(h.d),
		lanes: int32(lanes), inverse: 1 / float32(h.d), eps: eps,
	}
	rows := g.Blocks.X
	if v == 0 {
		rows *= qkWarps
	}
	if !dwq.None() || !dwk.None() {
		size := rows * h.d * 4
		part, err := c.env.Scratch("qk norm", 2*size)
		if err != nil {
			on.Fail(err)
			return
		}
		a.dwq, a.dwk = part.Addr(), part.Addr()+uintptr(size)
	}
	cuda.Launch(on, c.qkBackward[v], g, &a)
	c.addUp(on, dwq, a.dwq, rows, addQ)
	c.addUp(on, dwk, a.dwk, rows, addK)
}

// heads shares the heads of h, each of which takes so many lanes, out evenly over the
// blocks of f that run at a time.
func (c CUDA) heads(f *cuda.Function, h headed, lanes int) (cuda.Grid, error) {
	const threads = warp * qkWarps
	return c.grid(f, nv.Blocks(h.n*h.all, threads/lanes), threads)
}

// addUp writes grad[D], where it is wanted, (+)= the sum of part's rows.
func (c CUDA) addUp(on *cuda.Stream, grad tensor.Tensor, part uintptr, rows int, add bool) {
	if grad.None() {
		return
	}
	d := grad.Numel()
	cuda.Launch(on, c.columns, columnsGrid(d, 1), &columnsArgs{
		dw: part, dwOut: grad.Buf.Addr(), rows: int32(rows), c: int32(d),
		f32: nv.Flag(grad.DType == dtype.F32), add: nv.Flag(add),
	})
}
