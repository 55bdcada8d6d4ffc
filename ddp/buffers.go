package ddp

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Buffer is a piece of a model's state that is no parameter and has no gradient,
// such as a running mean. It is of any type, in memory of the streams' device or
// of the host; a GPU takes the host's without making it wait when it comes from
// AllocHost.
type Buffer struct {
	Name string
	tensor.Tensor
}

// flatBuffers is all buffers of one type, which travel as one message.
type flatBuffers struct {
	parts []tensor.Tensor
	flat  tensor.Tensor // one after another, memory of the group
}

func checkBuffers(list []Buffer, dev device.Device) error {
	known := map[string]bool{}
	for _, b := range list {
		switch {
		case known[b.Name]:
			return fmt.Errorf("ddp: two buffers are called %s", b.Name)
		case b.None():
			return fmt.Errorf("ddp: buffer %s has no memory", b.Name)
		case !b.Buf.OnHost() && dev.Kind() == device.CPU:
			return fmt.Errorf("ddp: buffer %s is not in host memory", b.Name)
		}
		known[b.Name] = true
	}
	return nil
}

// allocBuffers sorts the buffers by type and gets what they travel in. One rank
// needs nothing.
func (d *DDP) allocBuffers() error {
	if d.group.Size() == 1 {
		return nil
	}
	for _, dt := range dtype.All {
		var f flatBuffers
		n := 0
		for _, b := range d.options.Buffers {
			if b.DType == dt {
				f.parts = append(f.parts, b.Tensor)
				n += b.Numel()
			}
		}
		if n == 0 {
			continue
		}
		buf, err := d.shared(n * dt.Size())
		if err != nil {
			return err
		}
		f.flat = tensor.New(buf, dt, n)
		d.buffers = append(d.buffers, f)
	}
	return nil
}

// BroadcastBuffers copies Options.Buffers of rank 0 to all ranks, bit by bit;
// while rank 0 has run out of data (Join), those of the lowest rank that has not.
// It does so behind the work enqueued on the compute stream so far and before
// what is enqueued later, one message for each type, and the host does not wait.
//
// The first StepBegin of a window calls it. Within the window each rank's forward
// passes change the rank's own, and what rank 0 has at the end counts. So a
// program calls it, on every rank, where other ranks use the buffers in between:
// before an evaluation. Within a micro-step it is an error.
func (d *DDP) BroadcastBuffers() error {
	switch {
	case d.err != nil:
		return d.err
	case d.open:
		return d.fail(errors.New("BroadcastBuffers within a micro-step"))
	}
	device.Release(d.enqueueBuffers())
	return nil
}

// enqueueBuffers returns events of the compute stream before and after, nil
// where there is nothing to do.
func (d *DDP) enqueueBuffers() (before, after device.Event) {
	if len(d.buffers) == 0 {
		return nil, nil
	}
	before = d.compute.Record()
	d.comm.Wait(before)
	for _, f := range d.buffers {
		if d.group.Rank() == d.presence.lead {
			f.each(func(part, place device.Buffer) { d.comm.Copy(place, part) })
		}
		d.group.Broadcast(d.comm, f.flat.Buf, f.flat.DType, d.presence.lead)
		if d.group.Rank() != d.presence.lead {
			f.each(d.comm.Copy)
		}
	}
	done := d.comm.Record()
	d.compute.Wait(done)
	device.Release(done)
	return before, d.compute.Record()
}

// each calls do with every buffer and its place in flat.
func (f flatBuffers) each(do func(part, place device.Buffer)) {
	at := 0
	for _, p := range f.parts {
		do(p.Buf, f.flat.Buf.Slice(at, at+p.Buf.Len()))
		at += p.Buf.Len()
	}
}
