package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Shard is a piece of one parameter that this rank's optimizer steps.
type Shard struct {
	Range
	// Master is the weight, f32 [To-From]. Work enqueued on the compute stream
	// between Finish and Gather may read and write it; elsewhere Settle must come
	// before.
	Master tensor.Tensor
	// Grad is the gradient after a synced Finish, [To-From]: in stage 1 of the type
	// of gradients, in stages 2 and 3 f32.
	Grad  tensor.Tensor
	Decay bool // whether weight decay applies: not Param.NoDecay
}

// Shards lists the pieces of all trainable parameters that this rank holds, in the
// order of reduction. Over all ranks they cover every element once, so that a sum of
// squares over them, summed up by AllReduce, is the square of the gradients' norm.
// The tensors are views that stay where they are until Close.
func (z *Zero) Shards() []Shard { return z.shards }

func (z *Zero) listShards() {
	for _, b := range z.buckets {
		for i, p := range b.Params {
			from, to, at := b.held(i, z.group.Rank(), z.group.Size())
			if from < to {
				b.shards = append(b.shards, Shard{Range{p, from, to}, b.master.Rows(at, at+to-from), b.grad.Rows(at, at+to-from), !p.NoDecay})
			}
		}
		z.shards = append(z.shards, b.shards...)
	}
}

// Held is what this rank holds of p, a frozen one too; From is To where it is
// nothing. It panics for a parameter that is not of this Zero.
func (z *Zero) Held(p *param.Param) Range {
	s := z.mustSlot(p)
	from, to, _ := s.bucket.held(s.i, z.group.Rank(), z.group.Size())
	return Range{p, from, to}
}

// SetWeight gives p's elements from the given one on their values, of which this
// rank takes what it holds: its masters, and of a frozen parameter in stages 1 and 2,
// rounded, all. Gather must follow, once for all parameters, so that the weights
// follow the masters. The host waits for the copy, until ctx ends. It makes no
// collective call: ranks may give each parameter as a whole or their own part.
func (z *Zero) SetWeight(ctx context.Context, p *param.Param, from int, values []float32) error {
	if z.open {
		return z.fail(errors.New("SetWeight within a micro-step"))
	}
	to := from + len(values)
	if from < 0 || to > p.Numel() {
		return fmt.Errorf("zero: SetWeight of elements %d to %d of %s, which has %d", from, to, p.Name, p.Numel())
	}
	t, first := z.whole(p)
	lo, hi := max(from, first), min(to, first+t.Numel())
	if lo >= hi {
		return nil
	}
	src := device.Of(values[lo-from : hi-from])
	if t.DType != dtype.F32 {
		rounded := make([]byte, (hi-lo)*t.DType.Size())
		vec.Narrow(t.DType, rounded, values[lo-from:hi-from])
		src = device.Host(rounded)
	}
	z.Settle() // gathers read what is written here
	z.compute.Copy(t.Rows(lo-first, hi-first).Buf, src)
	if z.plan.Stage == 3 {
		z.forgetBlocks()
	}
	if err := z.compute.Synchronize(ctx); err != nil {
		return fmt.Errorf("zero: %s: setting %s: %w", agree.Who(z.group, z.group.Rank()), p.Name, err)
	}
	return nil
}

// ReadWeight reads p's elements from the given one on, which this rank must hold:
// from its masters, or of a frozen parameter the weights, exactly. It sees them
// behind the work enqueued on the compute stream so far; the host waits, until ctx
// ends.
func (z *Zero) ReadWeight(ctx context.Context, p *param.Param, from int, values []float32) error {
	t, first := z.whole(p)
	to := from + len(values)
	if from < first || to > first+t.Numel() {
		return fmt.Errorf("zero: %s: ReadWeight of elements %d to %d of %s: this rank holds %d to %d",
			agree.Who(z.group, z.group.Rank()), from, to, p.Name, first, first+t.Numel())
	}
	dst := device.Of(values)
	if t.DType != dtype.F32 {
		dst = device.Host(make([]byte, len(values)*t.DType.Size()))
	}
	z.Settle() // weights of f32 are gathered in place
	z.compute.Copy(dst, t.Rows(from-first, to-first).Buf)
	if err := z.compute.Synchronize(ctx); err != nil {
		return fmt.Errorf("zero: %s: reading %s: %w", agree.Who(z.group, z.group.Rank()), p.Name, err)
	}
	if t.DType != dtype.F32 {
		vec.Widen(t.DType, values, dst.Bytes())
	}
	return nil
}

// whole is all of p that this rank has to itself, and its first element.
func (z *Zero) whole(p *param.Param) (t tensor.Tensor, first int) {
	s := z.mustSlot(p)
	b := s.bucket
	if p.Frozen && z.plan.Stage < 3 {
		at := b.Offsets[s.i]
		return b.weights.Rows(at, at+p.Numel()), 0
	}
	from, to, at := b.held(s.i, z.group.Rank(), z.group.Size())
	if from == to {
		at = 0
	}
	t = b.master
	if p.Frozen {
		t = b.shard
	}
	return t.Rows(at, at+to-from), from
}

func (z *Zero) mustSlot(p *param.Param) *slot {
	s := z.index[p]
	if s == nil {
		panic("zero: " + p.Name + " is not in the parameter list")
	}
	return s
}
