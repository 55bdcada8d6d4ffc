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

//go:embed norm.cu
var source string

// CUDA computes on a GPU: x, y, w and their like bf16 in memory, all arithmetic and
// sums f32. Work is enqueued on the stream, on which errors stay. Backward passes
// on several streams must be ordered by events: they share scratch memory.
type CUDA struct {
	env *nv.Env
	// By vectors a thread; 0 are the plain kernels, for any length and address.
	rms, rmsBackward, layer, layerBackward [3]*cuda.Function
	columns                                *cuda.Function
	qk, qkBackward                         [2]*cuda.Function // plain, and of vectors
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	c := CUDA{env: env}
	kernels := nv.Kernels{"norm_columns": &c.columns}
	for i, suffix := range []string{"plain", "1", "2"} {
		kernels["rmsnorm_"+suffix] = &c.rms[i]
		kernels["rmsnorm_backward_"+suffix] = &c.rmsBackward[i]
		kernels["layernorm_"+suffix] = &c.layer[i]
		kernels["layernorm_backward_"+suffix] = &c.layerBackward[i]
	}
	if err := env.Load("norm.cu", source, kernels); err != nil {
		return c, err
	}
	return c, env.Load("qk.cu", qkSource, nv.Kernels{
		"qknorm_plain": &c.qk[0], "qknorm_vector": &c.qk[1],
		"qknorm_backward_plain": &c.qkBackward[0], "qknorm_backward_vector": &c.qkBackward[1],
	})
}

const (
	vector     = 8   // channels of a vector
	maxThreads = 512 // of a block that keeps a row in registers
	plain      = 256 // threads of a plain block, at most
	warp       = 32
)

// variant is how rows of c channels are done: vectors a thread (0: plain) and
// threads a block.
func variant(c int, ts ...tensor.Tensor) (vectors, threads int) {
	if row := c / vector; c%vector == 0 && row <= 2*maxThreads && nv.Aligned(16, ts...) {
		vectors = nv.Blocks(row, maxThreads)
		return vectors, warp * nv.Blocks(nv.Blocks(row, vectors), warp)
	}
	return 0, min(plain, warp*nv.Blocks(c, warp))
}

// grid shares n rows out evenly over the blocks of f that run at a time.
func (c CUDA) grid(f *cuda.Function, n, threads int) (cuda.Grid, error) {
	resident, err := c.env.Resident(f, threads)
	if err != nil {
		return cuda.Grid{}, err
	}
	return nv.Grid(threads*nv.Blocks(n, nv.Blocks(n, resident)), threads), nil
}

type forwardArgs struct {
	y, mean, rstd, x, w, b uintptr
	n                      int64
	c                      int32
	inverse, eps           float32
}

// RMSNorm writes y = x*rstd*w with rstd = 1/sqrt(mean(x²)+eps), the mean over
// C. x, y [N,C], w [C] bf16, rstd [N] f32. y may be x.
func (c CUDA) RMSNorm(s device.Stream, y, rstd, x, w tensor.Tensor, eps float32) {
	const op = "rmsnorm"
	n, d := dims(op, []arg{{"x", x}, {"y", y}}, []arg{{"w", w}}, nil, []arg{{"rstd", rstd}})
	check.Is(op, "w", w, dtype.BF16, d)
	v, threads := variant(d, y, x, w)
	c.forward(s, c.rms[v], threads, forwardArgs{
		y: y.Buf.Addr(), rstd: rstd.Buf.Addr(), x: x.Buf.Addr(), w: w.Buf.Addr(),
		n: int64(n), c: int32(d), eps: eps,
	})
}

// LayerNorm writes y = (x-mean)*rstd*w + b with rstd = 1/sqrt(var+eps), mean and
// biased variance over C. x, y [N,C], w, b [C] bf16, mean, rstd [N] f32. y may be x.
func (c CUDA) LayerNorm(s device.Stream, y, mean, rstd, x, w, b tensor.Tensor, eps float32) {
	const op = "layernorm"
	n, d := dims(op, []arg{{"x", x}, {"y", y}}, []arg{{"w", w}, {"b", b}}, nil, []arg{{"mean", mean}, {"rstd", rstd}})
	check.Is(op, "w", w, dtype.BF16, d)
	check.Is(op, "b", b, dtype.BF16, d)
	v, threads := variant(d, y, x, w, b)
	c.forward(s, c.layer[v], threads, forwardArgs{
		y: y.Buf.Addr(), mean: mean.Buf.Addr(), rstd: rstd.Buf.Addr(), x: x.Buf.Addr(), w: w.Buf.Addr(), b: b.Buf.Addr(),
		n: int64(n), c: int32(d), eps: eps,
	})
}

func (c CUDA) forward(s device.Stream, f *cuda.Function, threads int, a forwardArgs) {
	if a.n == 0 {
		return
	}
	on := nv.Stream(s)
	g, err := c.grid(f, int(a.n), threads)
	if err != nil {
		on.Fail(err)
		return
	}
	a.inverse = 1 / float32(a.c)
	cuda.Launch(on, f, g, &a)
}

type backwardArgs struct {
	dx, dy, x, w, mean, rstd, dw, db uintptr
	n                                int64
	c                                int32
	inverse                          float32
	add                              int32
}

type columnsArgs struct {
	dw, db, dwOut, dbOut uintptr
	rows, c              int32
	f32, add             int32
}

// RMSNormBackward writes dx (+)= rstd*(dy*w - x̂*mean(dy*w*x̂)) and dw (+)= the
// sum over rows of dy*x̂, where x̂ = x*rstd. dw, bf16 or f32, is optional. dx may be
// dy.
func (c CUDA) RMSNormBackward(s device.Stream, dx, dw, dy, x, w, rstd tensor.Tensor, addX, addW bool) {
	const op = "rmsnorm backward"
	n, d := dims(op, []arg{{"x", x}, {"dx", dx}, {"dy", dy}}, []arg{{"w", w}}, []arg{{"dw", dw}}, []arg{{"rstd", rstd}})
	check.Is(op, "w", w, dtype.BF16, d)
	v, threads := variant(d, dx, dy, x, w)
	c.backward(s, c.rmsBackward[v], threads, gradients{op, dx, dw, tensor.Tensor{}, dy, addX, addW}, backwardArgs{
		x: x.Buf.Addr(), w: w.Buf.Addr(), rstd: rstd.Buf.Addr(), n: int64(n), c: int32(d),
	})
}

// LayerNormBackward writes dx (+)= rstd*(g - mean(g) - x̂*mean(g*x̂)) with
// g = dy*w and x̂ = (x-mean)*rstd, and dw, db (+)= the sums over rows of dy*x̂
// and dy. dw and db, bf16 or f32, are optional, both or none. dx may be dy.
func (c CUDA) LayerNormBackward(s device.Stream, dx, dw, db, dy, x, w, mean, rstd tensor.Tensor, addX, addW bool) {
	const op = "layernorm backward"
	n, d := dims(op, []arg{{"x", x}, {"dx", dx}, {"dy", dy}}, []arg{{"w", w}}, []arg{{"dw", dw}, {"db", db}},
		[]arg{{"mean", mean}, {"rstd", rstd}})
	check.Is(op, "w", w, dtype.BF16, d)
	if dw.DType != db.DType {
		check.Fail(op, "dw is %v and db is %v: want both of one type, or none", dw, db)
	}
	v, threads := variant(d, dx, dy, x, w)
	c.backward(s, c.layerBackward[v], threads, gradients{op, dx, dw, db, dy, addX, addW}, backwardArgs{
		x: x.Buf.Addr(), w: w.Buf.Addr(), mean: mean.Buf.Addr(), rstd: rstd.Buf.Addr(), n: int64(n), c: int32(d),
	})
}

// gradients are the arguments of a backward pass that are gradients.
type gradients struct {
	op             string
	dx, dw, db, dy tensor.Tensor
	addX, addW     bool
}

// backward launches f, which leaves a sum a block where weights have gradients,
// and the kernel that adds these up.
func (c CUDA) backward(s device.Stream, f *cuda.Function, threads int, g gradients, a backwardArgs) {
	if g.addX && sameMemory(g.dx, g.dy) {
		check.Fail(g.op, "dx is dy and cannot be added to")
	}
	on := nv.Stream(s)
	outs := 0
	for _, t := range []tensor.Tensor{g.dw, g.db} {
		if t.None() {
			continue
		}
		outs++
		if a.n == 0 && !g.addW {
			on.Clear(t.Buf)
		}
	}
	if a.n == 0 {
		return
	}
	grid, err := c.grid(f, int(a.n), threads)
	if err != nil {
		on.Fail(err)
		return
	}
	rows := grid.Blocks.X
	if outs > 0 {
		size := rows * int(a.c) * 4
		part, err := c.env.Scratch("norm", outs*size)
		if err != nil {
			on.Fail(err)
			return
		}
		a.dw, a.db = part.Addr(), part.Addr()+uintptr(size)
	}
	a.dx, a.dy, a.inverse, a.add = g.dx.Buf.Addr(), g.dy.Buf.Addr(), 1/float32(a.c), nv.Flag(g.addX)
	cuda.Launch(on, f, grid, &a)
	if outs == 0 {
		return
	}
	cuda.Launch(on, c.columns, columnsGrid(int(a.c), outs), &columnsArgs{
		dw: a.dw, db: a.db, dwOut: g.dw.Buf.Addr(), dbOut: g.db.Buf.Addr(),
		rows: int32(rows), c: a.c, f32: nv.Flag(g.dw.DType == dtype.F32), add: nv.Flag(g.addW),
	})
}

// columnsGrid is the launch of norm_columns for outs sums of c columns each.
func columnsGrid(c, outs int) cuda.Grid {
	const columns, threads = 8, 1024 // of a block
	return cuda.Grid{Blocks: cuda.Dim{X: nv.Blocks(c, columns), Y: outs}, Threads: cuda.Dim{X: threads}}
}
