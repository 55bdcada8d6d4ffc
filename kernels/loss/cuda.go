package loss

import (
	_ "embed"
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed loss.cu
var source string

// CUDA computes on a GPU, in f32, on logits of bf16 or f32. Work is enqueued on the
// stream, on which errors stay.
type CUDA struct {
	f32, bf16 *cuda.Function
	shared    int // memory of a block for a row, bytes
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	var c CUDA
	if err := env.Load("loss.cu", source, nv.Kernels{"cross_entropy_f32": &c.f32, "cross_entropy_bf16": &c.bf16}); err != nil {
		return CUDA{}, err
	}
	most, err := env.Device.Attribute(cuda.SharedPerBlockOptIn)
	if err != nil {
		return CUDA{}, err
	}
	c.shared = (most - max(c.f32.SharedBytes(), c.bf16.SharedBytes())) / chunk * chunk
	for _, f := range []*cuda.Function{c.f32, c.bf16} {
		if err := f.SetShared(c.shared); err != nil {
			return CUDA{}, fmt.Errorf("loss.cu: %w", err)
		}
	}
	return c, nil
}

// chunk is the bytes of a row that a thread reads and keeps at once.
const chunk = 16

// crossEntropyArgs is CrossEntropy in loss.cu.
type crossEntropyArgs struct {
	loss, logits, targets uintptr
	v, grad, kept         int32
	scale                 float32
}

// CrossEntropy writes loss[N] = -log softmax(logits[N,V])[targets[N]], 0 where the
// target is negative. With grad, logits is overwritten by scale*(softmax - onehot),
// zeros where the target is negative. A NaN or +Inf in a row makes its loss and its
// gradient NaN, and so does a target of V or more.
func (c CUDA) CrossEntropy(s device.Stream, loss, logits, targets tensor.Tensor, scale float32, grad bool) {
	const op = "cross entropy"
	n, v := dims(op, loss, logits, targets)
	f := c.bf16
	switch logits.DType {
	case dtype.BF16:
	case dtype.F32:
		f = c.f32
	default:
		check.Fail(op, "logits is %v, want bf16 or f32", logits)
	}
	if n == 0 {
		return
	}
	chunks := v * logits.DType.Size() / chunk
	a := crossEntropyArgs{loss: loss.Buf.Addr(), logits: logits.Buf.Addr(), targets: targets.Buf.Addr(), v: int32(v), scale: scale}
	if grad {
		a.grad, a.kept = 1, int32(min(chunks, c.shared/chunk))
	}
	cuda.Launch(nv.Stream(s), f, cuda.Grid{
		Blocks: cuda.Dim{X: n}, Threads: cuda.Dim{X: blockSize(chunks)}, Shared: int(a.kept) * chunk,
	}, &a)
}

// blockSize is the threads for a row: each has at least 8 chunks, for the reductions
// between the threads to count little.
func blockSize(chunks int) int {
	threads := 32
	for threads < 1024 && 2*threads*8 <= chunks {
		threads *= 2
	}
	return threads
}
