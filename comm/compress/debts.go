package compress

import (
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

type hostStream = arrays.HostStream

// floats is the first n elements of f32 of a buffer.
func floats(b device.Buffer, n int) []float32 { return device.View[float32](b.Slice(0, 4*n)) }

// debts is where a bucket's parameters have what is left behind of them.
type debts []struct {
	offset    int
	old, next []float32 // nil where nothing is
}

func (c *Compressor) debts(i int) debts {
	list := make(debts, len(c.errors[i]))
	for j, s := range c.errors[i] {
		list[j].offset = c.layout.Buckets[i].Offsets[j]
		if s != nil {
			list[j].old, list[j].next = s.turn()
		}
	}
	return list
}

// load brings a bucket's gradients to work, and adds what was left behind of them. What
// lies between and behind them is zero.
func (b *Bucket) load(work []float32, flat tensor.Tensor, d debts) {
	at := 0
	for j, p := range b.Params {
		from, to := b.Offsets[j], b.Offsets[j]+p.Numel()
		clear(work[at:from])
		vec.Widen(b.DType, work[from:to], flat.Rows(from, to).Buf.Bytes())
		if d[j].old != nil {
			vec.Accumulate(dtype.F32, work[from:to], device.Of(d[j].old).Bytes())
		}
		at = to
	}
	clear(work[at:])
}

// store writes the gradients of work to a bucket, and leaves what lies between alone.
func (b *Bucket) store(flat tensor.Tensor, work []float32) {
	for j, p := range b.Params {
		from, to := b.Offsets[j], b.Offsets[j]+p.Numel()
		vec.Narrow(b.DType, flat.Rows(from, to).Buf.Bytes(), work[from:to])
	}
}

// squares is the sum of the squares of a bucket's gradients.
func (b *Bucket) squares(flat tensor.Tensor) (total float64) {
	for j, p := range b.Params {
		total += vec.SumSquares(b.DType, flat.Rows(b.Offsets[j], b.Offsets[j]+p.Numel()).Buf.Bytes())
	}
	return total
}

// keep keeps work as what is left behind.
func (d debts) keep(work []float32) {
	for _, x := range d {
		keep(x.next, work[x.offset:x.offset+len(x.next)], x.old)
	}
}

// owe adds x, which begins at the bucket's element from, to what is left behind.
func (d debts) owe(from int, x []float32) {
	for _, y := range d {
		lo, hi := max(from, y.offset), min(from+len(x), y.offset+len(y.next))
		for e := lo; e < hi; e++ {
			if v := y.next[e-y.offset] + x[e-from]; v-v == 0 {
				y.next[e-y.offset] = v
			}
		}
	}
}

// squares is the sum of the squares of what is left behind.
func (d debts) squares() (total float64) {
	for _, x := range d {
		total += squares(x.next)
	}
	return total
}

func squares(x []float32) float64 { return vec.SumSquares(dtype.F32, device.Of(x).Bytes()) }
