package lowrank

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed lowrank.cu
var source string

// CUDA computes on a GPU: factors in bf16, their gradients in f32, or in bf16 where
// they are used in the step that makes them. Work is enqueued on the stream, on which
// errors stay.
type CUDA struct {
	spread, collectF32, collectBF16 *cuda.Function
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	var c CUDA
	err := env.Load("lowrank.cu", source, nv.Kernels{
		"spread": &c.spread, "collect_f32": &c.collectF32, "collect_bf16": &c.collectBF16,
	})
	return c, err
}

const threads = 256

type blockArgs struct {
	y, x     uintptr
	n        int64 // elements of y
	r        int32
	blocks   int32
	from, to [Most]int32
	scale    float32
	add      int32
}

func arguments(y, x tensor.Tensor, r int, blocks [][2]int, scale float32, add bool) *blockArgs {
	a := &blockArgs{y: y.Buf.Addr(), x: x.Buf.Addr(), n: int64(y.Numel()), r: int32(r), blocks: int32(len(blocks)), scale: scale, add: nv.Flag(add)}
	for g, b := range blocks {
		a.from[g], a.to[g] = int32(b[0]), int32(b[1])
	}
	return a
}

// Spread writes y[O,G*R] from the factors x[M,R], both bf16: see CPU.
func (c CUDA) Spread(s device.Stream, y, x tensor.Tensor, blocks [][2]int, scale float32) {
	const op = "spread"
	m, r, o := dims(op, "x", x, "y", y, blocks)
	check.Is(op, "x", x, dtype.BF16, m, r)
	check.Is(op, "y", y, dtype.BF16, o, len(blocks)*r)
	if y.Numel() == 0 {
		return
	}
	cuda.Launch(nv.Stream(s), c.spread, nv.Grid(y.Numel(), threads), arguments(y, x, r, blocks, scale, false))
}

// Collect writes y[M,R] (+)= scale times the factors' places in x[O,G*R] f32: see CPU.
// y is f32 or bf16.
func (c CUDA) Collect(s device.Stream, y, x tensor.Tensor, blocks [][2]int, scale float32, add bool) {
	const op = "collect"
	m, r, o := dims(op, "y", y, "x", x, blocks)
	check.Is(op, "x", x, dtype.F32, o, len(blocks)*r)
	check.Grad(op, "y", y, dtype.BF16, m, r)
	if y.Numel() == 0 {
		return
	}
	f := c.collectBF16
	if y.DType == dtype.F32 {
		f = c.collectF32
	}
	cuda.Launch(nv.Stream(s), f, nv.Grid(y.Numel(), threads), arguments(y, x, r, blocks, scale, add))
}
