package ddp

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// alloc gets the memory of all buckets, in one piece: its size does not depend
// on the order, so a rebuilt plan fits into it too. What travels comes from the
// group.
func (d *DDP) alloc() (err error) {
	if err := d.allocBuffers(); err != nil {
		return err
	}
	wire := 0
	for _, b := range d.plan.Buckets {
		if dt := d.wireDType(b.DType); dt != b.DType {
			wire += b.Padded / b.DType.Size() * dt.Size()
		}
	}
	if d.group.Size() > 1 {
		n := 8 * (len(d.params) + len(d.frozen))
		if d.sums, err = d.private(d.compute.Device().Alloc(n)); err != nil {
			return err
		}
		if d.sumsRead, err = d.private(d.compute.Device().AllocHost(n)); err != nil {
			return err
		}
	}
	if wire == 0 {
		d.arena, err = d.shared(d.plan.Bytes)
		return err
	}
	if d.arena, err = d.private(d.compute.Device().Alloc(d.plan.Bytes)); err != nil {
		return err
	}
	d.wire, err = d.shared(wire)
	return err
}

// private is memory that Close frees.
func (d *DDP) private(b device.Buffer, err error) (device.Buffer, error) {
	if err == nil {
		d.own = append(d.own, b)
	}
	return b, err
}

// shared is n bytes that the group reduces, on the streams' device. One rank
// reduces nothing, and its group need not know of a device.
func (d *DDP) shared(n int) (device.Buffer, error) {
	if d.group.Size() == 1 {
		return d.private(d.compute.Device().Alloc(n))
	}
	b, err := d.group.Alloc(n)
	if err == nil && n > 0 && b.OnHost() != d.onCPU() {
		err = fmt.Errorf("the group gives memory of another device than that of the streams, %s: it must be made with it (comm.Options.Device)", d.compute.Device())
	}
	return b, err
}

// layOut points every gradient to its place in plan.
func (d *DDP) layOut(plan *Plan) {
	d.plan, d.buckets = plan, make([]bucket, len(plan.Buckets))
	at, wireAt := 0, 0
	for i, slots := range plan.Buckets {
		b := &d.buckets[i]
		b.Slots = slots
		buf := d.arena.Slice(at, at+slots.Padded)
		at += slots.Padded
		n := slots.Padded / slots.DType.Size()
		b.flat = tensor.New(buf, slots.DType, n)
		b.wire = b.flat
		if dt := d.wireDType(slots.DType); dt != slots.DType {
			b.wire = tensor.New(d.wire.Slice(wireAt, wireAt+n*dt.Size()), dt, n)
			wireAt += n * dt.Size()
		}
		for j, p := range slots.Params {
			from := slots.Offsets[j]
			k := d.index[p]
			d.grads[k] = tensor.New(buf.Slice(from, from+p.Numel()*slots.DType.Size()), slots.DType, p.Shape...)
			d.home[k] = b
		}
	}
	d.log.Info("ddp: " + plan.String())
}

// wireDType is the type in which gradients travel; one rank's do not.
func (d *DDP) wireDType(grad dtype.DType) dtype.DType {
	if d.options.ReduceDType != dtype.Invalid && d.group.Size() > 1 {
		return d.options.ReduceDType
	}
	return grad
}
