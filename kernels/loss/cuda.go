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
	f32, bf16 map[int]*cuda.Function // by threads of a block
	sms       int
	perBlock  int // shared memory that a block may have for a row, bytes
	perSM     int // shared memory of a multiprocessor, bytes
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	m, err := env.Module("loss.cu", source)
	if err != nil {
		return CUDA{}, err
	}
	c := CUDA{f32: map[int]*cuda.Function{}, bf16: map[int]*cuda.Function{}, sms: env.SMs}
	most, err := env.Device.Attribute(cuda.SharedPerBlockOptIn)
	if err != nil {
		return CUDA{}, err
	}
	if c.perSM, err = env.Device.Attribute(cuda.SharedPerMulti); err != nil {
		return CUDA{}, err
	}
	for name, kernels := range map[string]map[int]*cuda.Function{"f32": c.f32, "bf16": c.bf16} {
		for _, threads := range []int{32, 128, 512, 1024} {
			f, err := m.Function(fmt.Sprintf("cross_entropy_%s_%d", name, threads))
			if err != nil {
				return CUDA{}, err
			}
			c.perBlock = (most - f.SharedBytes()) / chunk * chunk
			if err := f.SetShared(c.perBlock); err != nil {
				return CUDA{}, fmt.Errorf("loss.cu: %w", err)
			}
			kernels[threads] = f
		}
	}
	return c, nil
}

const (
	chunk    = 16   // bytes of a row that a thread reads and keeps at once
	resident = 1024 // threads of a multiprocessor, for the kernels' registers
	reserved = 2048 // shared memory of a block beside the row, at most
)

// crossEntropyArgs is CrossEntropy in loss.cu.
type crossEntropyArgs struct {
	loss, logits, targets uintptr
	n, v, grad, kept      int32
	scale                 float32
}

// CrossEntropy writes loss[N] = -log softmax(logits[N,V])[targets[N]], 0 where the
// target is negative. With grad, logits is overwritten by scale*(softmax - onehot),
// zeros where the target is negative. A NaN or +Inf in a row makes its loss and its
// gradient NaN, and so do a target of V or more and a largest logit beyond ±1e9. Both
// may be off by some 1e-7, of 1 and of scale.
func (c CUDA) CrossEntropy(s device.Stream, loss, logits, targets tensor.Tensor, scale float32, grad bool) {
	const op = "cross entropy"
	n, v := dims(op, loss, logits, targets)
	kernels := c.bf16
	switch logits.DType {
	case dtype.BF16:
	case dtype.F32:
		kernels = c.f32
	default:
		check.Fail(op, "logits is %v, want bf16 or f32", logits)
	}
	if n == 0 {
		return
	}
	chunks := v * logits.DType.Size() / chunk
	a := crossEntropyArgs{
		loss: loss.Buf.Addr(), logits: logits.Buf.Addr(), targets: targets.Buf.Addr(),
		n: int32(n), v: int32(v), scale: scale,
	}
	if grad {
		a.grad, a.kept = 1, int32(min(chunks, c.perBlock/chunk))
	}
	threads, shared := blockSize(chunks), int(a.kept)*chunk
	perSM := max(1, min(resident/threads, c.perSM/(shared+reserved)))
	cuda.Launch(nv.Stream(s), kernels[threads], cuda.Grid{
		Blocks: cuda.Dim{X: min(n, c.sms*perSM)}, Threads: cuda.Dim{X: threads}, Shared: shared,
	}, &a)
}

// blockSize is the threads for a row: each has a few chunks at least, for what they
// do together to count little, and long rows, of which a multiprocessor holds one,
// have all the threads that it holds.
func blockSize(chunks int) int {
	switch {
	case chunks < 512:
		return 32
	case chunks < 2048:
		return 128
	case chunks < 8192:
		return 512
	}
	return 1024
}
