package linear

import (
	_ "embed"
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed bias.cu
var biasText string

// CUDA computes on a GPU: products by cuBLASLt, on bf16 with sums in f32, which are
// rounded once. Reruns on one kind of GPU give the same bits. A failure fails the
// stream.
type CUDA struct {
	env            *nv.Env
	mul            *cublaslt.Handle
	partials, sums *cuda.Function // of bias.cu
}

// NewCUDA opens cuBLASLt for the device of env. Close releases it.
func NewCUDA(env *nv.Env) (CUDA, error) {
	c := CUDA{env: env}
	err := env.Load("bias.cu", biasText, nv.Kernels{"bias_partials": &c.partials, "bias_sums": &c.sums})
	if err != nil {
		return CUDA{}, err
	}
	if c.mul, err = cublaslt.New(env.Device, 0); err != nil {
		return CUDA{}, err
	}
	return c, nil
}

// Close releases cuBLASLt. Synchronize the streams first.
func (c CUDA) Close() error { return c.mul.Close() }

// Products is what multiplies: its version and choices of algorithms belong in the
// log and in checkpoints.
func (c CUDA) Products() *cublaslt.Handle { return c.mul }

// Linear writes y[N,O] = x[N,I]·w[O,I]ᵀ + b[O] + r[N,O]; b and r are optional, r
// may be y. All bf16.
func (c CUDA) Linear(s device.Stream, y, x, w, b, r tensor.Tensor) {
	const op = "linear"
	forwardDims(op, y, x, w, b, r)
	stream := nv.Stream(s)
	bias, err := c.aligned(stream, b)
	if err != nil {
		stream.Fail(fmt.Errorf("%s: %w", op, err))
		return
	}
	c.mul.MatMul(stream, matrix(op, "y", y), matrix(op, "x", x), transposed(matrix(op, "w", w)), bias, summand(op, "r", r))
}

// LinearBackwardX writes dx[N,I] (+)= dy[N,O]·w[O,I]. All bf16.
func (c CUDA) LinearBackwardX(s device.Stream, dx, dy, w tensor.Tensor, add bool) {
	const op = "linear backward x"
	dims(op, "dy", "dx", dy, dx, w)
	d := matrix(op, "dx", dx)
	c.mul.MatMul(nv.Stream(s), d, matrix(op, "dy", dy), matrix(op, "w", w), 0, itself(d, add))
}

// LinearBackwardW writes dw[O,I] (+)= dy[N,O]ᵀ·x[N,I]; dy and x are bf16, dw is bf16
// or f32.
func (c CUDA) LinearBackwardW(s device.Stream, dw, dy, x tensor.Tensor, add bool) {
	const op = "linear backward w"
	n, _, _ := gradDims(op, dw, dy, x)
	d, left, right := matrix(op, "dw", dw), matrix(op, "dy", dy), matrix(op, "x", x)
	if n == 0 {
		if !add {
			nv.Stream(s).Clear(dw.Buf)
		}
		return
	}
	c.mul.MatMul(nv.Stream(s), d, transposed(left), right, 0, itself(d, add))
}

// columnSums and finish are the arguments of bias.cu.
type columnSums struct {
	dy, partials uintptr
	n, o, rows   int64
	wide         int32
}

type finish struct {
	partials, db uintptr
	o            int64
	parts        int32
	f32, add, _  int32
}

const (
	tile    = 128 // columns of a block of bias_partials
	threads = 256
)

// BiasBackward writes db[O] (+)= the column sums of dy[N,O]; dy is bf16, db is bf16
// or f32, and sums are f32. Their order depends on N, O and the number of
// multiprocessors alone.
func (c CUDA) BiasBackward(s device.Stream, db, dy tensor.Tensor, add bool) {
	const op = "bias backward"
	n, o := biasDims(op, db, dy)
	from := matrix(op, "dy", dy)
	if o == 0 {
		return
	}
	stream := nv.Stream(s)
	rows, parts := c.split(n, o)
	scratch, err := c.env.Scratch(op, max(parts, 1)*o*4)
	if err != nil {
		stream.Fail(fmt.Errorf("%s of %v: %w", op, dy, err))
		return
	}
	if parts > 0 {
		args := columnSums{
			dy: from.Addr, partials: scratch.Addr(), n: int64(n), o: int64(o), rows: int64(rows),
			wide: nv.Flag(o%8 == 0 && nv.Aligned(16, dy)),
		}
		cuda.Launch(stream, c.partials, cuda.Grid{
			Blocks:  cuda.Dim{X: nv.Blocks(o, tile), Y: parts},
			Threads: cuda.Dim{X: threads},
		}, &args)
	}
	last := finish{
		partials: scratch.Addr(), db: db.Buf.Addr(), o: int64(o), parts: int32(parts),
		f32: nv.Flag(db.DType == dtype.F32), add: nv.Flag(add),
	}
	cuda.Launch(stream, c.sums, cuda.Grid{Blocks: cuda.Dim{X: nv.Blocks(o, 32)}, Threads: cuda.Dim{X: threads}}, &last)
}

// split cuts the n rows of a column sum into parts of so many rows, a multiple of
// the 16 that a block reads at once: enough blocks to fill the GPU once, but not so
// short that adding up the parts would count.
func (c CUDA) split(n, o int) (rows, parts int) {
	if n == 0 {
		return 0, 0
	}
	const perSM, least = 6, 64
	want := max(c.env.SMs*perSM/nv.Blocks(o, tile), 1)
	rows = max((n+want-1)/want, least)
	rows = (rows + 15) / 16 * 16
	return rows, nv.Blocks(n, rows)
}

// aligned is the address of a bias, 0 for none. What does not begin at a multiple of
// 16 bytes, as the library wants it, is copied to where it does.
func (c CUDA) aligned(s *cuda.Stream, b tensor.Tensor) (uintptr, error) {
	if b.None() || nv.Aligned(16, b) {
		return b.Buf.Addr(), nil
	}
	to, err := c.env.Scratch("linear bias", b.Buf.Len())
	if err != nil {
		return 0, err
	}
	s.Copy(to.Slice(0, b.Buf.Len()), b.Buf)
	return to.Addr(), nil
}

// matrix is a tensor of two dimensions in device memory; gradients alone are f32.
func matrix(op, arg string, t tensor.Tensor) cublaslt.Matrix {
	grad := arg == "dw"
	if t.DType != dtype.BF16 && !(grad && t.DType == dtype.F32) || t.Buf.OnHost() && t.Buf.Len() > 0 {
		where := "device"
		if t.Buf.OnHost() {
			where = "host"
		}
		check.Fail(op, "%s is %v in %s memory, want bf16 in device memory", arg, t, where)
	}
	return cublaslt.Matrix{Addr: t.Buf.Addr(), DType: t.DType, Rows: t.Shape[0], Cols: t.Shape[1], Stride: t.Shape[1]}
}

func transposed(m cublaslt.Matrix) cublaslt.Matrix {
	m.Trans = !m.Trans
	return m
}

// summand is what a product is added to: t, or nothing.
func summand(op, arg string, t tensor.Tensor) cublaslt.Matrix {
	if t.None() {
		return cublaslt.Matrix{}
	}
	return matrix(op, arg, t)
}

// itself is what a result is added to: what it holds, or nothing.
func itself(m cublaslt.Matrix, add bool) cublaslt.Matrix {
	if !add {
		return cublaslt.Matrix{}
	}
	return m
}
