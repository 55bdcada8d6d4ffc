package attention

import (
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// nextKernels continue a text: one stores the new keys and values, one attends.
type nextKernels struct {
	append, attend *cuda.Function
}

// nextArgs is Next in next.cu.
type nextArgs struct {
	qkv, keys, values, o uintptr
	T, H, K, D, pos      int32
	scale                float32
}

func (n *native) nextKernels() (nextKernels, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next.attend != nil {
		return n.next, nil
	}
	var k nextKernels
	err := n.env.Load("attention_next", source("next.cu"), nv.Kernels{"attention_append": &k.append, "attention_next": &k.attend}, "--std=c++17")
	if err != nil {
		return k, err
	}
	n.next = k
	return k, nil
}

func (n *native) continueText(st *cuda.Stream, s shape, o, keys, values, qkv tensor.Tensor, pos int) error {
	const threads = 256
	k, err := n.nextKernels()
	if err != nil {
		return err
	}
	a := nextArgs{
		qkv: qkv.Buf.Addr(), keys: keys.Buf.Addr(), values: values.Buf.Addr(), o: o.Buf.Addr(),
		T: int32(s.T), H: int32(s.H), K: int32(s.K), D: int32(s.D), pos: int32(pos), scale: softmaxScale(s.D),
	}
	cuda.Launch(st, k.append, nv.Grid(2*s.T*s.K*s.D, threads), &a)
	cuda.Launch(st, k.attend, nv.Grid(s.T*s.H*threads, threads), &a)
	return nil
}
