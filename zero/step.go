package zero

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// StepBegin begins a micro-step. With sync true it is the last of its window: Finish
// makes the sum of this and all micro-steps since the last synced one the gradient.
// With sync false stage 1 keeps its gradients on this rank; stages 2 and 3 reduce
// them all the same, so that no rank ever holds all of them, and every rank must
// begin as many micro-steps as the others.
//
// The micro-step after a synced one overwrites the gradients: work that reads them
// must be enqueued on the compute stream before.
func (z *Zero) StepBegin(sync bool) error {
	if z.err != nil {
		return z.err
	}
	if z.open {
		return z.fail(errors.New("StepBegin before the last micro-step's Finish"))
	}
	z.first = !z.window
	if z.first && z.plan.hook != nil {
		z.plan.hook.Begin()
	}
	z.window, z.open, z.sync = true, true, sync
	z.steps++
	z.next = 0
	for _, s := range z.slots {
		s.touched, s.ready = false, false
		s.written = s.written && z.plan.Stage == 1 && !z.first
	}
	for _, b := range z.buckets {
		b.pending = len(b.Params)
	}
	if sync {
		z.current.begin = z.compute.Record()
		z.current.buckets = make([]bucketEvents, len(z.buckets))
	}
	return nil
}

// Finish ends a micro-step. Every trainable parameter must be Ready; else the error
// names the missing ones.
//
// After a synced micro-step, work enqueued on the compute stream from now on sees
// the reduced gradients of Shards, and may write the masters. Options.Reduced comes
// before, for one bucket after the other. The host waits for nothing, and ctx is
// left alone. In stage 3 the ranks tell each other in which order they have used the
// blocks: where that differs, the group ends.
func (z *Zero) Finish(context.Context) error {
	if z.err != nil {
		return z.err
	}
	if !z.open {
		return z.fail(errors.New("Finish without StepBegin"))
	}
	var missing []*param.Param
	for _, s := range z.slots {
		if !s.ready {
			missing = append(missing, s.Param)
		}
	}
	if len(missing) > 0 {
		return z.fail(fmt.Errorf("no gradient for %s: every trainable parameter must be Ready in every micro-step. "+
			"If the model is right to leave it out, freeze it", param.Names(missing)))
	}
	if !z.sync {
		z.open = false
		return nil
	}
	z.current.end = z.compute.Record()
	for i, b := range z.buckets {
		if z.options.Reduced != nil {
			z.waitFor(z.current.buckets[i].done)
			z.options.Reduced(i, b.shards)
		}
	}
	z.compareOrders()
	// The optimizer writes what gathers read, and those may be behind the reductions.
	z.Settle()
	z.open, z.window = false, false
	z.finishTimeline()
	return nil
}

// Settle makes work enqueued on the compute stream from now on wait for all that the
// communication stream has to do by now. It is for who touches masters elsewhere
// than between Finish and Gather, such as a checkpoint.
func (z *Zero) Settle() {
	e := z.comm.Record()
	z.waitFor(e)
	release(e)
}

// AllReduce replaces t by its sum over the ranks, behind the work enqueued on the
// compute stream so far; what is enqueued later sees the sum. It is for what ranks
// add up themselves: the sum of squares over Shards becomes the square of the norm.
// Every rank calls it at the same place among its other calls. t lies in memory of
// the streams' device.
func (z *Zero) AllReduce(t tensor.Tensor) {
	if z.group.Size() == 1 {
		return
	}
	e := z.compute.Record()
	z.comm.Wait(e)
	release(e)
	z.group.AllReduce(z.comm, t.Buf, t.DType, comm.Sum)
	e = z.comm.Record()
	if z.window || z.last.end == nil {
		z.waitFor(e)
	} else { // the time belongs to the step that was finished
		z.measure(&z.last, e)
	}
	release(e)
}
