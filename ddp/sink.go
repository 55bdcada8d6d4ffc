package ddp

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Get is where p's gradient belongs, of type GradDType, and whether to add. It
// says false for the first writer since the last synced micro-step, and true
// from then on.
//
// It panics for a parameter that is frozen or not of this DDP: there is no
// memory to return. Get after Ready fails the micro-step, and so does Get of a
// parameter that the first micro-step did not use (StaticGraph).
func (d *DDP) Get(p *param.Param) (grad tensor.Tensor, add bool) {
	i := d.mustIndex(p)
	switch {
	case d.err != nil:
	case !d.open:
		d.fail(fmt.Errorf("Get of %s outside of a micro-step", p.Name))
	case d.static != nil && !d.static[i]:
		d.fail(fmt.Errorf("StaticGraph: %s has a gradient, and had none in the first micro-step. "+
			"If the model may change, set Options.StaticGraph to false (parallel.static_graph in train.yaml)", p.Name))
	case d.ready[i]:
		d.fail(fmt.Errorf("Get of %s after its Ready", p.Name))
	case d.presence.out:
		d.fail(fmt.Errorf("Get of %s after Join(false): a rank that has run out of data has no gradients to give", p.Name))
	}
	add = d.written[i]
	d.written[i], d.touched[i] = true, true
	return d.grads[i], add
}

// Ready says that p's gradient is complete at the current place of the compute
// stream. In a synced micro-step the bucket that it completes is reduced, and
// those after it that were complete and had to let it go first.
//
// An error is kept and returned by Finish: a second Ready, one without Get, one
// of a parameter that is frozen or not of this DDP.
func (d *DDP) Ready(p *param.Param) {
	if d.err != nil {
		return
	}
	i, known := d.index[p]
	switch {
	case d.frozen[p]:
		d.fail(fmt.Errorf("Ready of %s, which is frozen", p.Name))
	case !known:
		d.fail(fmt.Errorf("Ready of %s, which is not in the parameter list", p.Name))
	case !d.open:
		d.fail(fmt.Errorf("Ready of %s outside of a micro-step", p.Name))
	case d.ready[i]:
		d.fail(fmt.Errorf("Ready of %s twice", p.Name))
	case !d.touched[i]:
		d.fail(fmt.Errorf("Ready of %s without Get: nothing was written", p.Name))
	default:
		d.ready[i] = true
		d.readyOrder = append(d.readyOrder, int32(i))
		d.settle(i)
	}
}

// settle says that this micro-step adds nothing more to parameter i.
func (d *DDP) settle(i int) {
	b := d.home[i]
	b.pending--
	if b.pending > 0 || !d.sync {
		return
	}
	b.ready = d.compute.Record()
	if !d.options.NoOverlap {
		d.launch()
	}
}

// launch enqueues the reduction of the complete buckets, up to the first that is
// not: whatever order gradients come in, every rank reduces in the plan's order.
// One rank has nothing to reduce, and does not wake the communication stream.
func (d *DDP) launch() {
	for ; d.next < len(d.buckets) && d.buckets[d.next].pending == 0; d.next++ {
		b := &d.buckets[d.next]
		if d.group.Size() == 1 {
			b.start, b.done = b.ready, b.ready
			continue
		}
		if d.options.NoOverlap {
			d.comm.Wait(d.timeline.end)
		} else {
			d.comm.Wait(b.ready)
		}
		b.start = d.comm.Record()
		b.sent = d.reduce(d.next, b)
		b.done = d.comm.Record()
	}
}

// reduce sums bucket b, the i-th, over the ranks, on the communication stream. It
// returns how many bytes this rank sends for it.
func (d *DDP) reduce(i int, b *bucket) (sent int64) {
	if h := d.options.Compress; h != nil {
		if sum, sent := h.Reduce(d.comm, i, b.flat); !sum.None() {
			return sent
		}
	}
	if b.wire.DType == b.DType {
		d.group.AllReduce(d.comm, b.flat.Buf, b.DType, d.options.Op)
	} else {
		d.memory.Convert(d.comm, b.wire, b.flat)
		d.group.AllReduce(d.comm, b.wire.Buf, b.wire.DType, d.options.Op)
		d.memory.Convert(d.comm, b.flat, b.wire)
	}
	n := int64(d.group.Size())
	return 2 * (n - 1) * int64(b.wire.Buf.Len()) / n
}

func (d *DDP) mustIndex(p *param.Param) int {
	i, ok := d.index[p]
	if !ok {
		why := "is not in the parameter list"
		if d.frozen[p] {
			why = "is frozen"
		}
		panic(fmt.Sprintf("ddp: %s has no gradient: it %s", p.Name, why))
	}
	return i
}
