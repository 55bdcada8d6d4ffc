package embedding

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

//go:embed embedding.cu
var source string

// CUDA computes on a GPU, on bf16 or f32; gradients of bf16 may be f32. Sums are
// f32, rounded once. Work is enqueued on the stream, on which errors stay. Calls of
// EmbedBackward on several streams must be ordered by events: they share scratch
// memory.
type CUDA struct {
	env            *nv.Env
	wide, narrow   *cuda.Function // of Embed: words of 16 bytes, of 2
	order          *cuda.Function
	positions      map[variant]*cuda.Function
	embedGrads     map[variant]*cuda.Function
	positionsGrads map[variant]*cuda.Function
}

// variant is an instance of a kernel: what it writes, what it reads, and the
// columns of a thread, several or 1.
type variant struct {
	to, from dtype.DType
	wide     bool
}

const (
	warps        = 8 // of a block, as embedding.cu has it
	threads      = 32 * warps
	embedColumns = 4 // of a thread, where wide
	positColumns = 8
)

// NewCUDA compiles the kernels for the device of env, which owns them.
func NewCUDA(env *nv.Env) (CUDA, error) {
	m, err := env.Module("embedding.cu", source)
	if err != nil {
		return CUDA{}, err
	}
	kernel := func(name string, args ...any) *cuda.Function {
		f, e := m.Function(fmt.Sprintf(name, args...))
		err = errors.Join(err, e)
		return f
	}
	c := CUDA{
		env: env, wide: kernel("embed_16"), narrow: kernel("embed_2"), order: kernel("embed_order"),
		positions:  map[variant]*cuda.Function{},
		embedGrads: map[variant]*cuda.Function{}, positionsGrads: map[variant]*cuda.Function{},
	}
	for _, wide := range []bool{false, true} {
		for _, from := range []dtype.DType{dtype.F32, dtype.BF16} {
			c.positions[variant{from, from, wide}] = kernel("positions_%v_%d", from, columns(wide, positColumns))
			for _, to := range []dtype.DType{dtype.F32, from} {
				v := variant{to, from, wide}
				c.embedGrads[v] = kernel("embed_backward_%v_%v_%d", to, from, columns(wide, embedColumns))
				c.positionsGrads[v] = kernel("positions_backward_%v_%v_%d", to, from, columns(wide, positColumns))
			}
		}
	}
	return c, err
}

func columns(wide bool, n int) int {
	if wide {
		return n
	}
	return 1
}

// embedArgs is Embed in embedding.cu, and so on.
type embedArgs struct {
	y, table, ids uintptr
	n             int64
	v, units      int32
}

type orderArgs struct {
	row, key, ids uintptr
	n, v          int32
}

type embedBackwardArgs struct {
	dtable, dy, row, key uintptr
	n, v, c, add         int32
}

type positionsArgs struct {
	y, table  uintptr
	rows      int64
	t, c, pos int32
}

type positionsBackwardArgs struct {
	dtable, dy   uintptr
	words        int64
	b, t, c, add int32
}

// Embed writes y[N,C] = table[V,C] rows ids[N]. An id outside the table gives a row
// of NaN.
func (c CUDA) Embed(s device.Stream, y, table, ids tensor.Tensor) {
	const op = "embed"
	n, v, d := dims(op, "y", "table", y, table, ids, false)
	elements(op, "y", y)
	if n*d == 0 {
		return
	}
	row := d * y.DType.Size()
	a := embedArgs{y: y.Buf.Addr(), table: table.Buf.Addr(), ids: ids.Buf.Addr(), n: int64(n), v: int32(v), units: int32(row / 2)}
	f := c.narrow
	if row%16 == 0 && nv.Aligned(16, y, table) {
		f, a.units = c.wide, int32(row/16)
	}
	cuda.Launch(nv.Stream(s), f, nv.Grid(n*32, threads), &a)
}

// EmbedBackward adds dy's rows to the rows ids of dtable[V,C], in the order of N for
// each id. Without add all of dtable is cleared first. Rows with an id outside the
// table add nothing: they were NaN in the forward pass. It holds 8*N bytes of
// scratch memory.
func (c CUDA) EmbedBackward(s device.Stream, dtable, dy, ids tensor.Tensor, add bool) {
	const op = "embed backward"
	n, v, d := dims(op, "dy", "dtable", dy, dtable, ids, true)
	elements(op, "dy", dy)
	stream := nv.Stream(s)
	if !add {
		stream.Clear(dtable.Buf)
	}
	if n*d == 0 {
		return
	}
	scratch, err := c.env.Scratch(op, 2*4*n)
	if err != nil {
		stream.Fail(fmt.Errorf("%s of %v: %w", op, dy, err))
		return
	}
	o := orderArgs{row: scratch.Addr(), key: scratch.Addr() + uintptr(4*n), ids: ids.Buf.Addr(), n: int32(n), v: int32(v)}
	cuda.Launch(stream, c.order, cuda.Grid{Blocks: cuda.Dim{X: nv.Blocks(n, 32)}, Threads: cuda.Dim{X: threads}}, &o)
	kind := variant{dtable.DType, dy.DType, d%embedColumns == 0 && nv.Aligned(16, dtable, dy)}
	a := embedBackwardArgs{
		dtable: dtable.Buf.Addr(), dy: dy.Buf.Addr(), row: o.row, key: o.key,
		n: int32(n), v: int32(v), c: int32(d), add: nv.Flag(add),
	}
	cuda.Launch(stream, c.embedGrads[kind], cuda.Grid{
		Blocks:  cuda.Dim{X: nv.Blocks(n, warps), Y: nv.Blocks(d, 32*columns(kind.wide, embedColumns))},
		Threads: cuda.Dim{X: threads},
	}, &a)
}

// Positions adds table[pos+t] to each y[b,t]: y[B,T,C], table[P,C].
func (c CUDA) Positions(s device.Stream, y, table tensor.Tensor, pos int) {
	const op = "positions"
	b, t, _, d := positionDims(op, "y", "table", y, table, pos, false)
	elements(op, "y", y)
	if b*t*d == 0 {
		return
	}
	kind := variant{y.DType, y.DType, d%positColumns == 0 && nv.Aligned(16, y, table)}
	a := positionsArgs{
		y: y.Buf.Addr(), table: table.Buf.Addr(),
		rows: int64(b) * int64(t), t: int32(t), c: int32(d), pos: int32(pos),
	}
	cuda.Launch(nv.Stream(s), c.positions[kind], nv.Grid(b*t*32, threads), &a)
}

// PositionsBackward writes or adds to dtable[t] the sum of dy[b,t] over b, in order:
// dy[B,T,C], dtable[P,C]. Without add the rows from T on are cleared.
func (c CUDA) PositionsBackward(s device.Stream, dtable, dy tensor.Tensor, add bool) {
	const op = "positions backward"
	b, t, p, d := positionDims(op, "dy", "dtable", dy, dtable, 0, true)
	elements(op, "dy", dy)
	if p*d == 0 {
		return
	}
	kind := variant{dtable.DType, dy.DType, d%positColumns == 0 && nv.Aligned(16, dtable, dy)}
	words := p * d / columns(kind.wide, positColumns)
	a := positionsBackwardArgs{
		dtable: dtable.Buf.Addr(), dy: dy.Buf.Addr(), words: int64(words),
		b: int32(b), t: int32(t), c: int32(d), add: nv.Flag(add),
	}
	cuda.Launch(nv.Stream(s), c.positionsGrads[kind], nv.Grid(words, threads), &a)
}

// elements panics unless t is of a type that the kernels know.
func elements(op, arg string, t tensor.Tensor) {
	if t.DType != dtype.BF16 && t.DType != dtype.F32 {
		check.Fail(op, "%s is %v, want bf16 or f32", arg, t)
	}
}
