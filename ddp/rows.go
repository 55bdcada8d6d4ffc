package ddp

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

var _ param.RowSink = (*DDP)(nil)

// rows is the state of a gradient whose last rows travel apart, see param.RowSink.
type rows struct {
	promised *param.Param    // in this micro-step, and not brought yet
	dy, ids  device.Buffer   // all ranks' rows and their ids
	n        int             // of all ranks
	waits    [2]device.Event // on the compute stream, around its wait for them
}

// OfferRows takes the offer under Options.Rows, where all ranks' rows together are
// at most half as many bytes as the whole gradient, which then leaves with its
// bucket. It takes one a micro-step.
func (d *DDP) OfferRows(p *param.Param, n int) bool {
	o := d.options
	size := d.group.Size()
	if d.err != nil || !o.Rows || !d.sync || size == 1 || o.Op != comm.Sum || o.NoOverlap || o.FindUnused ||
		d.presence.partial || d.rows.promised != nil || len(p.Shape) != 2 || 2*size*n > p.Shape[0] {
		return false
	}
	d.Ready(p)
	d.rows.promised = p
	return d.err == nil
}

// GatherRows gathers all ranks' rows behind the buckets, of which every one must be
// under way: the rows come last. What is enqueued on the compute stream from now on
// waits for them, and for p's bucket.
func (d *DDP) GatherRows(p *param.Param, dy, ids tensor.Tensor) (grad, allDy, allIDs tensor.Tensor, ok bool) {
	if d.rows.promised != p || d.err != nil {
		return grad, allDy, allIDs, false
	}
	d.rows.promised = nil
	i := d.mustIndex(p)
	if d.next < len(d.buckets) {
		d.fail(fmt.Errorf("GatherRows of %s while other gradients are not Ready: rows come last", p.Name))
		return grad, allDy, allIDs, false
	}
	size := d.group.Size()
	var err error
	alloc := func(b *device.Buffer, n int) device.Buffer {
		if b.Len() < n && err == nil {
			if *b, err = d.compute.Device().Alloc(n); err == nil {
				d.own = append(d.own, *b)
			}
		}
		if err != nil {
			return device.Buffer{}
		}
		return b.Slice(0, n)
	}
	toDy, toIDs := alloc(&d.rows.dy, size*dy.Buf.Len()), alloc(&d.rows.ids, size*ids.Buf.Len())
	if err != nil {
		d.fail(fmt.Errorf("memory for %d ranks' rows of %s: %w", size, p.Name, err))
		return grad, allDy, allIDs, false
	}
	d.rows.waits[0] = d.compute.Record()
	d.comm.Wait(d.rows.waits[0])
	d.group.AllGather(d.comm, toDy, dy.Buf, dy.DType)
	d.group.AllGather(d.comm, toIDs, ids.Buf, dtype.I32)
	gathered := d.comm.Record()
	d.compute.Wait(gathered)
	d.rows.waits[1] = d.compute.Record()
	device.Release(gathered)
	d.rows.n = size * ids.Numel()
	return d.grads[i], tensor.New(toDy, dy.DType, d.rows.n, dy.Shape[1]), tensor.New(toIDs, dtype.I32, d.rows.n), true
}
