package zero

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

var _ param.Weights = (*Zero)(nil)

// Gather makes the weights of the masters: it rounds each to the weights' type and
// hands it to all ranks, on the communication stream, behind the work enqueued on
// the compute stream so far. The next passes run beside it: Use waits for what a
// block needs. In stage 3 each rank rounds its own, and blocks travel when they
// are used.
//
// It belongs behind the optimizer, and behind SetWeight. A step that is to change
// nothing leaves it out, on every rank alike; where the masters are unchanged, it
// changes no bit either. It is an error within a micro-step.
func (z *Zero) Gather() error {
	switch {
	case z.err != nil:
		return z.err
	case z.open:
		return z.fail(fmt.Errorf("Gather within a micro-step: it belongs behind Finish and the optimizer"))
	}
	e := z.compute.Record()
	z.comm.Wait(e)
	release(e)
	for _, b := range slices.Backward(z.buckets) { // a forward pass uses the last ones first
		if b.DType != dtype.F32 {
			z.memory.Convert(z.comm, b.shard, b.master)
		}
		if z.plan.Stage == 3 {
			continue
		}
		z.allGather(b, b.weights.Buf)
		release(b.gathered)
		b.gathered = z.comm.Record()
		if z.options.NoOverlap {
			z.waitGathered(b)
		}
	}
	if z.plan.Stage == 3 {
		z.forgetBlocks()
		z.prefetch()
	}
	return nil
}

// allGather brings all of b's weights to dst.
func (z *Zero) allGather(b *bucket, dst device.Buffer) {
	switch {
	case b.Padded == 0:
	case z.group.Size() > 1:
		z.group.AllGather(z.comm, dst, b.shard.Buf, b.DType)
		z.sent.AllGather += z.plan.sent(&b.Bucket, b.DType)
	case z.plan.Stage == 3:
		z.comm.Copy(dst, b.shard.Buf)
	}
}

func (z *Zero) waitGathered(b *bucket) {
	if b.gathered != nil {
		z.waitFor(b.gathered)
		release(b.gathered)
		b.gathered = nil
	}
}

// Use makes the block's weights readable by work enqueued on the compute stream
// from now on. In stages 1 and 2 the stream waits for the last Gather of them. In
// stage 3 it waits for the block, which is gathered now if it was not before, and the
// block that is expected next is gathered beside it: the one that followed last
// time, or the next in the direction of travel. So in stage 3 every rank uses the
// same blocks in the same order, of which a synced Finish makes sure, and one at a
// time: a second Use before Done panics.
func (z *Zero) Use(block int) {
	if z.plan.Stage == 3 {
		z.useBlock(block)
		return
	}
	for _, b := range z.sharing[block] {
		z.waitGathered(b)
	}
}

// Done says that all work reading the block's weights is enqueued. In stage 3 their
// memory is given to another block, once that work is done.
func (z *Zero) Done(block int) {
	if z.plan.Stage == 3 {
		z.doneBlock(block)
	}
}

// Weight is p's weight, shaped p.Shape, of type p.DType. It panics for a parameter
// that is not of this Zero, and in stage 3 for one whose block is not in use: there
// is no memory to return.
func (z *Zero) Weight(p *param.Param) tensor.Tensor {
	s := z.index[p]
	if s == nil {
		panic(fmt.Sprintf("zero: %s has no weight: it is not in the parameter list", p.Name))
	}
	w := s.bucket.weights
	if z.plan.Stage == 3 {
		w = z.gathered(s)
	}
	at := s.bucket.Offsets[s.i]
	return w.Rows(at, at+p.Numel()).Reshape(p.Shape...)
}
