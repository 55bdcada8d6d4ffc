package elementwise

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed elementwise.cu
var source string

// CUDA copies and clears memory of a GPU. Work is enqueued on the stream, on which
// errors stay.
type CUDA struct {
	convert map[conversion]*cuda.Function
}

type conversion struct{ to, from dtype.DType }

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	m, err := env.Module("elementwise.cu", source)
	if err != nil {
		return CUDA{}, err
	}
	c := CUDA{map[conversion]*cuda.Function{}}
	types := []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}
	for _, to := range types {
		for _, from := range types {
			if to == from {
				continue
			}
			if c.convert[conversion{to, from}], err = m.Function(to.String() + "_from_" + from.String()); err != nil {
				return CUDA{}, err
			}
		}
	}
	return c, nil
}

type convertArgs struct {
	y, x uintptr
	n    int64
	wide int32
}

// Copy writes y = x, of one shape. Between f32, bf16 and f16 it converts, to the
// nearest value, ties to even; other types must be equal. Tensors of one type may
// lie on the host too.
func (c CUDA) Copy(s device.Stream, y, x tensor.Tensor) {
	const op = "copy"
	n := copyDims(op, y, x)
	if x.DType == y.DType {
		s.Copy(y.Buf, x.Buf)
		return
	}
	if n == 0 {
		return
	}
	const threads, vector = 256, 4
	a := convertArgs{y: y.Buf.Addr(), x: x.Buf.Addr(), n: int64(n)}
	pieces := n
	if nv.Aligned(vector*y.DType.Size(), y) && nv.Aligned(vector*x.DType.Size(), x) {
		a.wide, pieces = 1, nv.Blocks(n, vector)
	}
	cuda.Launch(nv.Stream(s), c.convert[conversion{y.DType, x.DType}], nv.Grid(pieces, threads), &a)
}

// Zero clears y, of any type and shape.
func (c CUDA) Zero(s device.Stream, y tensor.Tensor) {
	if y.None() {
		check.Fail("zero", "y is none")
	}
	nv.Stream(s).Clear(y.Buf)
}
