package adamw

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed adamw.cu
var source string

// CUDA computes on a GPU, in f32. Work is enqueued on the stream, on which errors
// stay.
type CUDA struct {
	step, clip *cuda.Function
	tables     *tables
}

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	c := CUDA{tables: newTables(env)}
	return c, env.Load("adamw.cu", source, nv.Kernels{"adamw": &c.step, "clip": &c.clip})
}

type clipArgs struct {
	coef, norm2, loss uintptr
	limit             float64
}

// Clip writes coef[1] = Coefficient(norm2[1], loss[1], limit), all f64.
func (c CUDA) Clip(s device.Stream, coef, norm2, loss tensor.Tensor, limit float64) {
	clipDims("clip", coef, norm2, loss)
	cuda.Launch(nv.Stream(s), c.clip, nv.Grid(1, 1),
		&clipArgs{coef.Buf.Addr(), norm2.Buf.Addr(), loss.Buf.Addr(), limit})
}

type stepArgs struct {
	segments, owners, scale                    uintptr
	keep, rate, beta1, beta2, rest2, root, eps float32
}

// AdamW makes one step of every slot, in place, as the CPU does, in one launch.
// Where W is bf16 the step is made on Master and W is its rounded copy.
//
// The list is uploaded when it is first seen, and again when an address or a size in
// it changes, which waits for the steps that were made with the old one and frees
// it. Several lists are told apart by the weights of their first slots, which stay
// where they are when gradients move.
func (c CUDA) AdamW(s device.Stream, slots []Slot, h Hyper) {
	const op = "adamw"
	h.check(op)
	for _, t := range slots {
		t.check(op)
	}
	on := nv.Stream(s)
	c.tables.mu.Lock()
	defer c.tables.mu.Unlock()
	t, err := c.tables.of(on, slots)
	if err != nil {
		on.Fail(err)
		return
	}
	if t == nil {
		return
	}
	k := h.factors()
	a := stepArgs{
		segments: t.segments.Addr(), owners: t.owners.Addr(), scale: h.Scale.Buf.Addr(),
		keep: float32(1 - h.LR*h.WeightDecay), rate: k.rate, beta1: k.beta1, beta2: k.beta2, rest2: k.rest2, root: k.root, eps: k.eps,
	}
	const threads = 256
	cuda.Launch(on, c.step, nv.Grid(t.chunks*threads, threads), &a)
	old := t.used
	t.used = on.Record().(*cuda.Event)
	if old != nil {
		old.Release() // whoever waits for it has enqueued that
	}
}

// segment is a slot as the kernel reads it. p are the weights on which the step is
// made, of which w, unless it is 0, becomes the rounded copy.
type segment struct {
	p, w, m, v, g uintptr
	n             int64
	first, flags  uint32
}

// The flags of a segment.
const (
	gradF32 = 1 << iota
	decays
	aligned // all addresses are multiples of 4 elements
)

const chunk = 8192 // elements a block

// segments describes slots, and returns how many chunks they are. Empty slots are
// left out.
func segments(slots []Slot) (list []segment, chunks int) {
	for _, t := range slots {
		n := t.W.Numel()
		if n == 0 {
			continue
		}
		g := segment{
			p: t.Master.Buf.Addr(), w: t.W.Buf.Addr(), m: t.M.Buf.Addr(), v: t.V.Buf.Addr(), g: t.G.Buf.Addr(),
			n: int64(n), first: uint32(chunks),
		}
		if t.Master.None() {
			g.p, g.w = g.w, 0
		}
		if t.G.DType == dtype.F32 {
			g.flags |= gradF32
		}
		if t.Decay {
			g.flags |= decays
		}
		if (g.p|g.m|g.v)%16 == 0 && g.w%8 == 0 && g.g%uintptr(4*t.G.DType.Size()) == 0 {
			g.flags |= aligned
		}
		list = append(list, g)
		chunks += nv.Blocks(n, chunk)
	}
	return list, chunks
}

// table is a list of segments on the device, and for each chunk the number of the
// segment that owns it.
type table struct {
	list             []segment
	chunks           int
	staging, memory  device.Buffer // pinned, and on the device
	segments, owners device.Buffer // parts of memory
	used             *cuda.Event   // after the last step that reads it
}

// tables holds a table for each list of slots, by the address of its first weights.
type tables struct {
	env   *nv.Env
	mu    sync.Mutex // guards known, and is held over a step
	known map[uintptr]*table
}

func newTables(env *nv.Env) *tables { return &tables{env: env, known: map[uintptr]*table{}} }

// maxTables bounds the lists that are kept, for a caller whose lists all differ.
const maxTables = 1024

// of returns the table of slots, on the device by the time s has come here; nil
// where there is nothing to do.
func (ts *tables) of(s *cuda.Stream, slots []Slot) (*table, error) {
	list, chunks := segments(slots)
	if len(list) == 0 {
		return nil, nil
	}
	t := ts.known[list[0].p]
	if t != nil && slices.Equal(t.list, list) {
		if t.used != nil {
			s.Wait(t.used) // of the stream that uploaded, where it is another
		}
		return t, nil
	}
	if t != nil {
		if err := ts.drop(t); err != nil {
			return nil, err
		}
	}
	for _, other := range ts.known {
		if len(ts.known) < maxTables {
			break
		}
		if err := ts.drop(other); err != nil {
			return nil, err
		}
	}
	t, err := ts.upload(s, list, chunks)
	if err != nil {
		return nil, fmt.Errorf("table of %d parameters of an optimizer's step: %w", len(list), err)
	}
	ts.known[list[0].p] = t
	return t, nil
}

// upload enqueues the copy of a new table to the device.
func (ts *tables) upload(s *cuda.Stream, list []segment, chunks int) (*table, error) {
	size := len(list) * int(unsafe.Sizeof(segment{}))
	total := size + 4*chunks
	staging, err := ts.env.AllocHost(total)
	if err != nil {
		return nil, err
	}
	memory, err := ts.env.Alloc(total)
	if err != nil {
		return nil, errors.Join(err, ts.env.Free(staging))
	}
	copy(device.View[segment](staging.Slice(0, size)), list)
	owners := device.View[uint32](staging.Slice(size, total))
	for i := range list {
		end := chunks
		if i+1 < len(list) {
			end = int(list[i+1].first)
		}
		for c := int(list[i].first); c < end; c++ {
			owners[c] = uint32(i)
		}
	}
	s.Copy(memory, staging)
	return &table{
		list: list, chunks: chunks, staging: staging, memory: memory,
		segments: memory.Slice(0, size), owners: memory.Slice(size, total),
	}, nil
}

// stepTimeout bounds the wait for a step whose table is to go.
const stepTimeout = 5 * time.Minute

// drop frees t once the steps that read it are done.
func (ts *tables) drop(t *table) error {
	if t.used != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), stepTimeout,
			fmt.Errorf("the step of %d parameters is not done after %v", len(t.list), stepTimeout))
		defer cancel()
		if err := t.used.Sync(ctx); err != nil {
			return err
		}
		t.used.Release()
	}
	delete(ts.known, t.list[0].p)
	return errors.Join(ts.env.Free(t.staging), ts.env.Free(t.memory))
}
