package zero

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

var _ param.GradSink = (*Zero)(nil)

// rotating is where the buckets of stages 2 and 3 are written that are not tied.
type rotating struct {
	buffers []*buffer
	uses    int
	wire    device.Buffer // a bucket in ReduceDType: the communication stream has one at a time
}

// buffer holds one bucket after the other.
type buffer struct {
	memory device.Buffer
	holder *bucket      // that is being written, nil between two
	done   device.Event // on the communication stream, behind the last holder's reduction
	used   int          // when it was taken
}

// Get is where p's gradient belongs, of type GradDType, and whether to add. It says
// false for the first writer: in stage 1 of the window, in stages 2 and 3 of the
// micro-step. There it may make the compute stream wait for the reduction of the
// bucket that had the buffer before.
//
// It panics for a parameter that is frozen or not of this Zero: there is no memory
// to return. Get after Ready fails the micro-step.
func (z *Zero) Get(p *param.Param) (grad tensor.Tensor, add bool) {
	s := z.index[p]
	switch {
	case s == nil:
		panic(fmt.Sprintf("zero: %s has no gradient: it is not in the parameter list", p.Name))
	case p.Frozen:
		panic(fmt.Sprintf("zero: %s has no gradient: it is frozen", p.Name))
	case z.err != nil:
	case !z.open:
		z.fail(fmt.Errorf("Get of %s outside of a micro-step", p.Name))
	case s.ready:
		z.fail(fmt.Errorf("Get of %s after its Ready", p.Name))
	}
	b := s.bucket
	if b.flat.None() {
		z.take(b)
	}
	add = s.written
	s.written, s.touched = true, true
	at := b.Offsets[s.i]
	return b.flat.Rows(at, at+p.Numel()).Reshape(p.Shape...), add
}

// Ready says that p's gradient is complete at the current place of the compute
// stream. The bucket that it completes is reduced, and those after it that were
// complete and had to let it go first: in stage 1 in a synced micro-step, in stages
// 2 and 3 in each.
//
// An error is kept and returned by Finish: a second Ready, one without Get, one of
// a parameter that is frozen or not of this Zero.
func (z *Zero) Ready(p *param.Param) {
	if z.err != nil {
		return
	}
	s := z.index[p]
	switch {
	case s == nil:
		z.fail(fmt.Errorf("Ready of %s, which is not in the parameter list", p.Name))
	case p.Frozen:
		z.fail(fmt.Errorf("Ready of %s, which is frozen", p.Name))
	case !z.open:
		z.fail(fmt.Errorf("Ready of %s outside of a micro-step", p.Name))
	case s.ready:
		z.fail(fmt.Errorf("Ready of %s twice", p.Name))
	case !s.touched:
		z.fail(fmt.Errorf("Ready of %s without Get: nothing was written", p.Name))
	default:
		s.ready = true
		b := s.bucket
		if b.pending--; b.pending == 0 && (z.sync || z.plan.Stage > 1) {
			b.ready = z.compute.Record()
			z.launch()
		}
	}
}

// take gives b a buffer to write its gradients into: its own, or one of those that
// rotate. The compute stream waits for the reduction of what was there before.
func (z *Zero) take(b *bucket) {
	x := b.own
	if x == nil {
		x = z.rotate(b)
	}
	if x.done != nil {
		z.waitFor(x.done)
		release(x.done)
		x.done = nil
	}
	z.uses++
	x.holder, x.used = b, z.uses
	b.buffer, b.flat = x, tensor.New(x.memory.Slice(0, b.gradBytes()), b.GradDType, b.Padded)
}

// rotate is the buffer that was let go of first. Where the model writes gradients of
// more buckets at a time than there are buffers, a further one is made.
func (z *Zero) rotate(b *bucket) (x *buffer) {
	for _, y := range z.buffers {
		if y.holder == nil && y.memory.Len() >= b.gradBytes() && (x == nil || y.used < x.used) {
			x = y
		}
	}
	switch {
	case x != nil:
		return x
	case z.err != nil:
		return z.buffers[0] // any memory: the step has failed
	default:
		return z.further(b)
	}
}

func (z *Zero) further(b *bucket) *buffer {
	memory, err := z.private(&z.held.Buffers, b.gradBytes())
	if err != nil {
		z.fail(fmt.Errorf("memory for a further bucket of %d bytes, as %d are being written: %w", b.gradBytes(), len(z.buffers), err))
		return z.buffers[0]
	}
	x := &buffer{memory: memory}
	z.buffers = append(z.buffers, x)
	z.log.Info("zero: gradients of more buckets are written at a time than there are buffers: made another; Options.Tied plans it",
		"buffers", len(z.buffers), "bytes", b.gradBytes(), "parameter", b.Params[0].Name)
	return x
}

// launch enqueues the reduction of the complete buckets, up to the first that is
// not: whatever order gradients come in, every rank reduces in the plan's order.
func (z *Zero) launch() {
	for ; z.next < len(z.buckets) && z.buckets[z.next].pending == 0; z.next++ {
		b := z.buckets[z.next]
		x := bucketEvents{ready: b.ready}
		b.ready = nil
		if z.plan.Stage == 1 && z.group.Size() == 1 { // the gradients are there
			x.start, x.done = x.ready, x.ready
		} else {
			z.comm.Wait(x.ready)
			x.start = z.comm.Record()
			z.reduce(b)
			x.done = z.comm.Record()
			if z.options.NoOverlap {
				z.waitFor(x.done)
			}
		}
		if f := b.buffer; f != nil {
			f.holder, f.done = nil, z.comm.Record()
			b.buffer, b.flat = nil, tensor.Tensor{}
		}
		if z.sync {
			z.current.buckets[z.next] = x
		} else {
			x.release()
		}
	}
}

// reduce sums b's gradients over the ranks, on the communication stream, into this
// rank's part.
func (z *Zero) reduce(b *bucket) {
	mine, compressed := z.compressed(b)
	if !compressed {
		mine = z.scatter(b)
	}
	switch {
	case z.plan.Stage == 1 && !compressed && mine.DType == b.GradDType: // mine is b.grad
	case z.plan.Stage == 1 || z.first:
		z.memory.Convert(z.comm, b.grad, mine)
	default:
		z.memory.Add(z.comm, b.grad, mine)
	}
}

// scatter is this rank's part of the sum in the type in which gradients travel.
func (z *Zero) scatter(b *bucket) (mine tensor.Tensor) {
	wire := b.flat
	if dt := z.plan.wireDType(b.GradDType); dt != b.GradDType {
		wire = tensor.New(z.wire.Slice(0, b.Padded*dt.Size()), dt, b.Padded)
		z.memory.Convert(z.comm, wire, b.flat)
	}
	mine = part(wire, z.group.Rank(), z.group.Size())
	if z.group.Size() > 1 && b.Padded > 0 {
		z.group.ReduceScatter(z.comm, mine.Buf, wire.Buf, wire.DType, z.options.Op)
		z.sent.ReduceScatter += z.plan.sent(&b.Bucket, wire.DType)
	}
	return mine
}
