package attention

import (
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CUDA computes on a GPU: bf16 in memory, products of bf16 with f32 sums, a softmax
// in f32. Reruns give the same bits. Work is enqueued on the stream, on which errors
// stay. Calls on several streams must be ordered by events: they share scratch
// memory.
//
// There are three implementations: our own kernels for Hopper (wgmma, heads of 64
// and 128), our own for compute capability 8.0 and newer (mma.sync), and cuDNN's.
// Which one a call takes depends on its shape alone; Explain tells.
type CUDA struct {
	native *native
	choice *choice
}

// NewCUDA prepares attention on the device of env, which owns the kernels; they are
// compiled at their first use, or by Prepare. by is "native", "cudnn" or "auto":
// cuDNN where it is known to be faster (see Prefer), is there, and agrees with the
// native kernels in a test, else native. With "cudnn" the error says why cuDNN
// cannot be had.
func NewCUDA(env *nv.Env, by string) (CUDA, error) {
	n, err := newNative(env, true)
	if err != nil {
		return CUDA{}, err
	}
	c := CUDA{native: n, choice: newChoice(by, n)}
	switch by {
	case "native", "auto":
		return c, nil
	case "cudnn":
		_, err := c.choice.open()
		return c, err
	}
	return CUDA{}, fmt.Errorf("attention: there is no implementation %q: want auto, native or cudnn", by)
}

// Close releases cuDNN where it was opened. Call it before Close of the env, with
// the streams synchronized.
func (c CUDA) Close() error { return c.choice.close() }

// Supported says why heads of a size cannot be trained with on a GPU, nil where they
// can.
func Supported(headDim int) error {
	if headDim < 8 || headDim > 128 || headDim%8 != 0 {
		return fmt.Errorf("attention on a GPU takes heads whose size is a multiple of 8 from 8 to 128, not of size %d: train on the CPU, or change the model's heads", headDim)
	}
	return nil
}

// Prepare compiles and allocates what calls of this shape need, backward passes
// included where asked for, so that the first step is like the others; only cuDNN's
// plans are made when they are first used. Its error says what is not supported.
func (c CUDA) Prepare(B, T, H, K, D int, docs, backward bool) error {
	s := shape{B: B, T: T, H: H, K: K, D: D}
	p, err := c.choice.plan(s, docs)
	if err != nil {
		return err
	}
	var parts []part
	if p.forward == nil {
		parts = append(parts, forward)
	}
	if backward && p.backward == nil {
		parts = append(parts, delta, dkv, dq)
		if _, err := c.native.scratch(s); err != nil {
			return err
		}
	}
	for _, part := range parts {
		if _, err := c.native.kernel(part, D, docs); err != nil {
			return err
		}
	}
	return nil
}

// Workspace is how many bytes of scratch memory calls of this shape take together,
// backward passes included where asked for.
func (c CUDA) Workspace(B, T, H, K, D int, docs, backward bool) (int64, error) {
	s := shape{B: B, T: T, H: H, K: K, D: D}
	p, err := c.choice.plan(s, docs)
	if err != nil {
		return 0, err
	}
	var n int64
	if backward && p.backward == nil {
		n += int64(deltaBytes(s))
	}
	if p.forward != nil || backward && p.backward != nil {
		f := p.forward
		if f == nil {
			f = p.backward
		}
		n += f.Workspace(B, T, H, K, D)
	}
	return n, nil
}

// Implementation names what computes calls of this shape without documents: "native
// (wgmma)", "cuDNN 9.19.0", or one for each pass. Equal names give equal bits on cards
// of one kind. Its error says what is not supported.
func (c CUDA) Implementation(B, T, H, K, D int) (string, error) {
	name, _, err := c.describe(shape{B: B, T: T, H: H, K: K, D: D})
	return name, err
}

// Explain says which implementation computes calls of this shape without documents,
// and why, for the log.
func (c CUDA) Explain(B, T, H, K, D int) string {
	name, why, err := c.describe(shape{B: B, T: T, H: H, K: K, D: D})
	if err != nil {
		return err.Error()
	}
	return "attention: " + name + ": " + why
}

// describe is the words of Implementation, and why.
func (c CUDA) describe(s shape) (text, why string, err error) {
	p, err := c.choice.plan(s, false)
	if err != nil {
		return "", "", err
	}
	name := func(f fused) string {
		if f == nil {
			return fmt.Sprintf("native (%s)", c.native.path(s.D))
		}
		return "cuDNN " + f.Version()
	}
	text = name(p.forward)
	if b := name(p.backward); b != text {
		text = fmt.Sprintf("forward %s, backward %s", text, b)
	}
	return text, p.why, nil
}

// Attention writes o[B,T,H,D] = softmax(q·kᵀ/sqrt(D))·v from qkv[B,T,H+2K,D], and
// lse[B,H,T] f32, the natural logarithm of the sum of exponentials of the scaled
// scores. docs[B,T] i32, optional, is the first position of each token's document,
// nondecreasing along T and at most t. o and qkv are bf16 and begin at multiples of
// 16 bytes; D as Supported says. No argument may overlap another.
func (c CUDA) Attention(s device.Stream, o, lse, qkv, docs tensor.Tensor) {
	const op = "attention"
	d := dims(op, o, lse, qkv, docs)
	accept(op, o, qkv)
	st := nv.Stream(s)
	if d.B*d.T == 0 {
		return
	}
	p, err := c.choice.plan(d, !docs.None())
	if err == nil && p.forward != nil {
		p.forward.Forward(s, o, lse, qkv)
	} else if err == nil {
		err = c.native.attend(st, d, o, lse, qkv, docs)
	}
	if err != nil {
		st.Fail(err)
	}
}

// AttentionBackward overwrites dqkv, shaped as qkv, from do, shaped as o, and what
// the forward pass read and wrote. The contributions to a key head are added up in
// f32 and in one order. Otherwise as Attention.
func (c CUDA) AttentionBackward(s device.Stream, dqkv, do, o, lse, qkv, docs tensor.Tensor) {
	const op = "attention backward"
	d := dims(op, o, lse, qkv, docs)
	check.Like(op, "do", do, "o", o)
	check.Like(op, "dqkv", dqkv, "qkv", qkv)
	accept(op, o, qkv, do, dqkv)
	st := nv.Stream(s)
	if d.B*d.T == 0 {
		return
	}
	p, err := c.choice.plan(d, !docs.None())
	if err == nil && p.backward != nil {
		p.backward.Backward(s, dqkv, do, o, lse, qkv)
	} else if err == nil {
		err = c.native.differentiate(st, d, dqkv, do, o, lse, qkv, docs)
	}
	if err != nil {
		st.Fail(err)
	}
}

// AttentionNext continues a text of pos tokens by those of qkv[1,T,H+2K,D]: their
// keys and values go to rows pos to pos+T of keys and values [P,K,D], and
// o[1,T,H,D] is the attention of their queries to all rows up to their own. All
// bf16, with D up to 128. It takes no scratch memory. It is made for generating
// text, not for speed.
func (c CUDA) AttentionNext(s device.Stream, o, keys, values, qkv tensor.Tensor, pos int) {
	const op = "attention next"
	d, _ := nextDims(op, o, keys, values, qkv, pos)
	if qkv.DType != dtype.BF16 || d.D > 128 {
		check.Fail(op, "qkv is %v, want bf16 with heads of at most 128", qkv)
	}
	st := nv.Stream(s)
	if d.T == 0 {
		return
	}
	if err := c.native.continueText(st, d, o, keys, values, qkv, pos); err != nil {
		st.Fail(err)
	}
}

// accept refuses what no implementation takes.
func accept(op string, ts ...tensor.Tensor) {
	for _, t := range ts {
		if t.DType != dtype.BF16 {
			check.Fail(op, "%v, want bf16 on a GPU", t)
		}
		if !nv.Aligned(16, t) {
			check.Fail(op, "%v begins at %#x, which is no multiple of 16", t, t.Buf.Addr())
		}
	}
}
