package attention

import (
	"fmt"
	"math"
	"sync"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// native is our own kernels on one GPU: those with Hopper's instructions where the
// card and the head size allow, else those of compute capability 8.0 and newer.
// Kernels are compiled when they are first wanted.
type native struct {
	env    *nv.Env
	hopper bool
	limit  int // dynamic shared memory that a block may have, bytes

	mu      sync.Mutex // guards what follows
	kernels map[kernelID]*kernel
	maps    map[mapID]cuda.TensorMap
	next    nextKernels
}

// part is a kernel of a pass.
type part int

const (
	forward part = iota
	delta
	dkv
	dq
)

type kernelID struct {
	part    part
	headDim int
	docs    bool
}

// kernel is a compiled tile.
type kernel struct {
	tile
	f *cuda.Function
}

// newNative checks the card; hopper false keeps to the kernels that need no more
// than compute capability 8.0.
func newNative(env *nv.Env, hopper bool) (*native, error) {
	major, minor := env.Device.Arch()
	if major < 8 {
		return nil, fmt.Errorf("%s: attention needs compute capability 8.0, and %s has %d.%d", env.Device, env.Device.Name(), major, minor)
	}
	limit, err := env.Device.Attribute(cuda.SharedPerBlockOptIn)
	if err != nil {
		return nil, fmt.Errorf("attention: %w", err)
	}
	return &native{
		env: env, hopper: hopper && major == 9 && minor == 0, limit: limit,
		kernels: map[kernelID]*kernel{}, maps: map[mapID]cuda.TensorMap{},
	}, nil
}

// path names the kernels that heads of size headDim get.
func (n *native) path(headDim int) string {
	if n.wgmma(headDim) {
		return "wgmma"
	}
	return "mma.sync"
}

func (n *native) wgmma(headDim int) bool { return n.hopper && (headDim == 64 || headDim == 128) }

func (n *native) tile(p part, headDim int) tile {
	switch {
	case p == delta:
		return deltaTile()
	case p == forward && n.wgmma(headDim):
		return wgmmaForward(headDim)
	case p == forward:
		return mmaForward(headDim)
	case p == dkv && n.wgmma(headDim):
		return wgmmaDKV(headDim)
	case p == dkv:
		return mmaDKV(headDim, n.limit)
	case n.wgmma(headDim):
		return wgmmaDQ(headDim)
	}
	return mmaDQ(headDim)
}

// kernel is a part for heads of a size, compiled at the first call.
func (n *native) kernel(p part, headDim int, docs bool) (*kernel, error) {
	if p == delta {
		docs = false // the same with and without
	}
	id := kernelID{p, headDim, docs}
	n.mu.Lock()
	defer n.mu.Unlock()
	if k := n.kernels[id]; k != nil {
		return k, nil
	}
	k := &kernel{tile: n.tile(p, headDim)}
	if k.shared > n.limit {
		return nil, fmt.Errorf("%s: %s takes %d bytes of shared memory for heads of size %d, and %s allows %d",
			n.env.Device, k.entry, k.shared, headDim, n.env.Device.Name(), n.limit)
	}
	if err := n.env.Load(k.entry, source(k.files...), nv.Kernels{k.entry: &k.f}, k.options(headDim, docs)...); err != nil {
		return nil, err
	}
	if err := k.f.SetShared(k.shared); err != nil {
		return nil, err
	}
	n.kernels[id] = k
	return k, nil
}

// deltaBytes is the scratch memory of a backward pass: delta[B,H,T] f32.
func deltaBytes(s shape) int { return 4 * s.B * s.H * s.T }

// scratch is the address of delta, allocated at the first call.
func (n *native) scratch(s shape) (uintptr, error) {
	b, err := n.env.Scratch("attention", deltaBytes(s))
	return b.Addr(), err
}

// mapID is what a tensor map depends on: the address and shape of x[B,T,heads,D].
type mapID struct {
	addr           uintptr
	b, t, heads, d int
}

// maxMaps bounds how many tensor maps are kept: more than the tensors of a step.
const maxMaps = 4096

// tensorMap describes a bf16 tensor to the copy engine. Every kernel loads boxes of
// 64 positions by 64 columns of one head.
func (n *native) tensorMap(x tensor.Tensor) (cuda.TensorMap, error) {
	id := mapID{x.Buf.Addr(), x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m, ok := n.maps[id]; ok {
		return m, nil
	}
	const size = 2 // of an element
	head := uint64(id.d) * size
	row := uint64(id.heads) * head
	var m cuda.TensorMap
	err := n.env.Device.EncodeTiled(&m, cuda.Tile{
		Type: cuda.TileBF16, Addr: id.addr,
		Dims:    []uint64{uint64(id.d), uint64(id.heads), uint64(id.t), uint64(id.b)},
		Strides: []uint64{head, row, uint64(id.t) * row},
		Box:     []uint32{64, 1, 64, 1},
		Swizzle: cuda.Swizzle128, Promotion: cuda.Promote128,
	})
	if err != nil {
		return m, fmt.Errorf("attention: %w", err)
	}
	if len(n.maps) >= maxMaps {
		clear(n.maps)
	}
	n.maps[id] = m
	return m, nil
}

// The arguments of the kernels, as in attention.cuh and delta.cu.

type forwardArgs struct {
	q, k, v, o, lse, docs uintptr
	sb, st, osb, ost      int64
	B, H, K, T            int32
	scale                 float32
}

type deltaArgs struct {
	o, do, delta uintptr
	osb, ost     int64
	B, H, T      int32
}

type backwardArgs struct {
	q, k, v, do, dq, dk, dv uintptr
	lse, delta, docs        uintptr
	sb, st, osb, ost        int64
	B, H, K, T              int32
	scale                   float32
}

// parts is where the queries, keys and values of a packed tensor begin.
func (s shape) parts(packed tensor.Tensor) (queries, keys, values uintptr) {
	head := uintptr(2 * s.D)
	queries = packed.Buf.Addr()
	keys = queries + uintptr(s.H)*head
	return queries, keys, keys + uintptr(s.K)*head
}

// strides are the elements from one sequence and position to the next of qkv and o.
func (s shape) strides() (sb, st, osb, ost int64) {
	st, ost = int64(s.heads()*s.D), int64(s.H*s.D)
	return int64(s.T) * st, st, int64(s.T) * ost, ost
}

func softmaxScale(headDim int) float32 { return float32(1 / math.Sqrt(float64(headDim))) }

func (n *native) attend(st *cuda.Stream, s shape, o, lse, qkv, docs tensor.Tensor) error {
	k, err := n.kernel(forward, s.D, !docs.None())
	if err != nil {
		return err
	}
	a := forwardArgs{
		o: o.Buf.Addr(), lse: lse.Buf.Addr(), docs: docs.Buf.Addr(),
		B: int32(s.B), H: int32(s.H), K: int32(s.K), T: int32(s.T), scale: softmaxScale(s.D),
	}
	a.q, a.k, a.v = s.parts(qkv)
	a.sb, a.st, a.osb, a.ost = s.strides()
	g := k.grid(s.B*s.H, s.T, n.env.SMs, !docs.None())
	if !k.maps {
		cuda.Launch(st, k.f, g, &a)
		return nil
	}
	m, err := n.tensorMap(qkv)
	if err != nil {
		return err
	}
	cuda.Launch(st, k.f, g, &struct {
		qkv cuda.TensorMap
		forwardArgs
	}{m, a})
	return nil
}

// differentiate runs delta, and then dK, dV and dQ, which need it and not each other.
func (n *native) differentiate(st *cuda.Stream, s shape, dqkv, do, o, lse, qkv, docs tensor.Tensor) error {
	bounded := !docs.None()
	scratch, err := n.scratch(s)
	if err != nil {
		return err
	}
	a := backwardArgs{
		do: do.Buf.Addr(), lse: lse.Buf.Addr(), delta: scratch, docs: docs.Buf.Addr(),
		B: int32(s.B), H: int32(s.H), K: int32(s.K), T: int32(s.T), scale: softmaxScale(s.D),
	}
	a.q, a.k, a.v = s.parts(qkv)
	a.dq, a.dk, a.dv = s.parts(dqkv)
	a.sb, a.st, a.osb, a.ost = s.strides()

	k, err := n.kernel(delta, s.D, bounded)
	if err != nil {
		return err
	}
	lanes := s.B * s.T * s.H * columns(s.D) / 8
	cuda.Launch(st, k.f, nv.Grid(lanes, k.threads), &deltaArgs{
		o: o.Buf.Addr(), do: a.do, delta: a.delta, osb: a.osb, ost: a.ost, B: a.B, H: a.H, T: a.T,
	})
	for _, p := range []struct {
		part  part
		heads int
	}{{dkv, s.B * s.K}, {dq, s.B * s.H}} {
		k, err := n.kernel(p.part, s.D, bounded)
		if err != nil {
			return err
		}
		g := k.grid(p.heads, s.T, n.env.SMs, bounded)
		if !k.maps {
			cuda.Launch(st, k.f, g, &a)
			continue
		}
		mq, err := n.tensorMap(qkv)
		if err != nil {
			return err
		}
		mdo, err := n.tensorMap(do)
		if err != nil {
			return err
		}
		cuda.Launch(st, k.f, g, &struct {
			qkv, do cuda.TensorMap
			backwardArgs
		}{mq, mdo, a})
	}
	return nil
}
