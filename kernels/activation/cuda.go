package activation

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed activation.cu
var source string

// CUDA computes on a GPU: bf16 in memory, f32 in between. It has the CPU's methods
// and meanings. Work is enqueued on the stream, on which errors stay.
type CUDA struct {
	swiglu, swigluBackward, gelu, geluBackward *cuda.Function
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	var c CUDA
	err := env.Load("activation.cu", source, nv.Kernels{
		"swiglu": &c.swiglu, "swiglu_backward": &c.swigluBackward,
		"gelu": &c.gelu, "gelu_backward": &c.geluBackward,
	})
	return c, err
}

const (
	threads = 256
	vector  = 8 // elements a thread does at once, where alignment allows
)

type gatedArgs struct {
	out, dy, x uintptr
	n          int64
	f, wide    int32
}

type mapArgs struct {
	out, dy, x uintptr
	n          int64
	wide       int32
}

// SwiGLU writes y[N,F] = silu(gate)*up, where x[N,2F] is gate and up side by side.
func (c CUDA) SwiGLU(s device.Stream, y, x tensor.Tensor) {
	gated(s, c.swiglu, "swiglu", "y", y, "x", x, y, tensor.Tensor{}, x)
}

// SwiGLUBackward overwrites dx[N,2F]: on the left dgate = dy*up*silu'(gate), on the
// right dup = dy*silu(gate). dx may be x.
func (c CUDA) SwiGLUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	const op = "swiglu backward"
	gatedDims(op, "dy", "dx", dy, dx)
	gated(s, c.swigluBackward, op, "dy", dy, "x", x, dx, dy, x)
}

// gated checks y[N,F] against x[N,2F], and launches f on out, dy and in.
func gated(s device.Stream, f *cuda.Function, op, yArg string, y tensor.Tensor, xArg string, x tensor.Tensor, out, dy, in tensor.Tensor) {
	rows, channels := gatedDims(op, yArg, xArg, y, x)
	check.Is(op, yArg, y, dtype.BF16, rows, channels)
	if rows*channels == 0 {
		return
	}
	a := gatedArgs{out: out.Buf.Addr(), dy: dy.Buf.Addr(), x: in.Buf.Addr(), n: int64(rows), f: int32(channels)}
	pieces := rows * channels
	if channels%vector == 0 && nv.Aligned(16, out, dy, in) {
		a.wide, pieces = 1, pieces/vector
	}
	cuda.Launch(nv.Stream(s), f, nv.Grid(pieces, threads), &a)
}

// GELU writes y = x/2*(1+tanh(u)), u = sqrt(2/pi)*(x + 0.044715x³): GPT-2's
// approximation. Any shape. y may be x.
func (c CUDA) GELU(s device.Stream, y, x tensor.Tensor) {
	const op = "gelu"
	n := alike(op, []string{"x", "y"}, x, y)
	elements(s, c.gelu, op, n, y, tensor.Tensor{}, x)
}

// GELUBackward overwrites dx = dy*gelu'(x). dx may be dy, or x.
func (c CUDA) GELUBackward(s device.Stream, dx, dy, x tensor.Tensor) {
	const op = "gelu backward"
	n := alike(op, []string{"x", "dy", "dx"}, x, dy, dx)
	elements(s, c.geluBackward, op, n, dx, dy, x)
}

func elements(s device.Stream, f *cuda.Function, op string, n int, out, dy, x tensor.Tensor) {
	check.Is(op, "x", x, dtype.BF16, x.Shape...)
	if n == 0 {
		return
	}
	a := mapArgs{out: out.Buf.Addr(), dy: dy.Buf.Addr(), x: x.Buf.Addr(), n: int64(n)}
	pieces := n
	if nv.Aligned(16, out, dy, x) {
		a.wide, pieces = 1, nv.Blocks(n, vector)
	}
	cuda.Launch(nv.Stream(s), f, nv.Grid(pieces, threads), &a)
}
