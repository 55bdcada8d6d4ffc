package dropout

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed dropout.cu
var source string

// CUDA computes on a GPU: bf16 in memory, f32 in between, and the CPU's choice of
// elements. Work is enqueued on the stream, on which errors stay.
type CUDA struct {
	drop *cuda.Function
}

// NewCUDA compiles the kernel for the device of env, which owns it.
func NewCUDA(env *nv.Env) (CUDA, error) {
	var c CUDA
	err := env.Load("dropout.cu", source, nv.Kernels{"dropout": &c.drop})
	return c, err
}

const (
	threads = 256
	vector  = 8 // elements a thread does at once, where alignment allows
)

type dropArgs struct {
	y, x      uintptr
	n         int64
	key, row  uint64
	width     int32
	below     uint32
	scale     float32
	add, wide int32
}

// Dropout writes or adds to y[N,I]: 0 with probability p, else x/(1-p); see CPU for
// which. y may be x, where it does not add. All bf16.
func (c CUDA) Dropout(s device.Stream, y, x tensor.Tensor, p float64, key, row uint64, add bool) {
	const op = "dropout"
	n, width := dims(op, y, x, p)
	check.Is(op, "y", y, dtype.BF16, n, width)
	if n*width == 0 {
		return
	}
	a := dropArgs{y: y.Buf.Addr(), x: x.Buf.Addr(), n: int64(n), key: key, row: row, width: int32(width),
		below: threshold(p), scale: float32(1 / (1 - p)), add: nv.Flag(add)}
	pieces := n * nv.Blocks(width, 2)
	if width%vector == 0 && nv.Aligned(16, y, x) {
		a.wide, pieces = 1, n*width/vector
	}
	cuda.Launch(nv.Stream(s), c.drop, nv.Grid(pieces, threads), &a)
}
