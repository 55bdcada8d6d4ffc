package attention

import (
	_ "embed"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed rope.cu
var ropeSource string

// Rotary is the rotary positions on a GPU, of bf16 or f32. Work is enqueued on the
// stream, on which errors stay.
type Rotary struct {
	f32, f32Wide, bf16, bf16Wide *cuda.Function
}

// NewRoPE compiles the kernels for the device of env, which owns them.
func NewRoPE(env *nv.Env) (Rotary, error) {
	var r Rotary
	err := env.Load("rope.cu", ropeSource, nv.Kernels{
		"rope_f32_1": &r.f32, "rope_f32_8": &r.f32Wide, "rope_bf16_1": &r.bf16, "rope_bf16_8": &r.bf16Wide,
	})
	return r, err
}

// ropeArgs is RoPE in rope.cu.
type ropeArgs struct {
	x, cos, sin         uintptr
	rows, stride        int64
	t, half, heads, pos int32
	sign                float32
}

// RoPE rotates the first heads of x[B,T,E,D] in place: the pair (i, i+D/2) of
// position t turns by the angle whose cosine and sine are cos[pos+t, i] and
// sin[pos+t, i], both f32. inverse turns back, which is the gradient. D is any even
// number. The result is rounded once.
func (r Rotary) RoPE(s device.Stream, x, cos, sin tensor.Tensor, heads, pos int, inverse bool) {
	const (
		op      = "rope"
		vector  = 8 // elements of a thread, where D and the addresses allow it
		threads = 256
	)
	b, t, e, d := ropeDims(op, x, cos, sin, heads, pos)
	one, wide := r.bf16, r.bf16Wide
	switch x.DType {
	case dtype.BF16:
	case dtype.F32:
		one, wide = r.f32, r.f32Wide
	default:
		check.Fail(op, "x is %v, want bf16 or f32", x)
	}
	if b*t*heads*d == 0 {
		return
	}
	a := ropeArgs{
		x: x.Buf.Addr(), cos: cos.Buf.Addr(), sin: sin.Buf.Addr(), rows: int64(b) * int64(t), stride: int64(e) * int64(d),
		t: int32(t), half: int32(d / 2), heads: int32(heads), pos: int32(pos), sign: 1,
	}
	if inverse {
		a.sign = -1
	}
	f := one
	if d/2%vector == 0 && nv.Aligned(16, x, cos, sin) {
		f = wide
	}
	cuda.Launch(nv.Stream(s), f, nv.Grid(b*t*32, threads), &a)
}
