package sum

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed sum.cu
var source string

// CUDA computes on a GPU, in f64. Work is enqueued on the stream, on which errors
// stay. Sums on several streams must be ordered by events: they share scratch memory.
type CUDA struct {
	sum, squares, squaresBF16, parts *cuda.Function
	part                             device.Buffer // maxBlocks f64
}

const (
	threads   = 256
	vector    = 16   // bytes a thread reads at once
	perThread = 4    // vectors a thread has at least, where there are that many
	maxBlocks = 1024 // of the first stage: a number that does not depend on the GPU, as its sums do not
)

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	var c CUDA
	if err := env.Load("sum.cu", source, nv.Kernels{
		"sum_f32": &c.sum, "squares_f32": &c.squares, "squares_bf16": &c.squaresBF16, "sum_parts": &c.parts,
	}); err != nil {
		return CUDA{}, err
	}
	var err error
	c.part, err = env.Alloc(maxBlocks * 8)
	return c, err
}

type sumArgs struct {
	x, part, out uintptr
	n            int64
	wide, add    int32
}

// Sum writes out[1] f64 (+)= the sum of x, f32 of any shape.
func (c CUDA) Sum(s device.Stream, out, x tensor.Tensor, add bool) {
	const op = "sum"
	n := dims(op, out, x)
	check.Is(op, "x", x, dtype.F32, x.Shape...)
	c.enqueue(s, c.sum, out, x, n, add)
}

// SumSquares writes out[1] f64 (+)= the sum of x², x f32 or bf16 of any shape. A
// NaN or an infinity in x shows in the sum.
func (c CUDA) SumSquares(s device.Stream, out, x tensor.Tensor, add bool) {
	const op = "sum of squares"
	n := dims(op, out, x)
	check.Grad(op, "x", x, dtype.BF16, x.Shape...)
	f := c.squares
	if x.DType == dtype.BF16 {
		f = c.squaresBF16
	}
	c.enqueue(s, f, out, x, n, add)
}

func (c CUDA) enqueue(s device.Stream, f *cuda.Function, out, x tensor.Tensor, n int, add bool) {
	a := sumArgs{x: x.Buf.Addr(), part: c.part.Addr(), out: out.Buf.Addr(), n: int64(n), add: nv.Flag(add)}
	pieces := n
	if nv.Aligned(vector, x) {
		a.wide, pieces = 1, n*x.DType.Size()/vector
	}
	blocks := min(max(1, nv.Blocks(pieces, threads*perThread)), maxBlocks)
	cuda.Launch(nv.Stream(s), f, nv.Grid(blocks*threads, threads), &a)
	if blocks > 1 {
		a.n = int64(blocks)
		cuda.Launch(nv.Stream(s), c.parts, nv.Grid(threads, threads), &a)
	}
}
