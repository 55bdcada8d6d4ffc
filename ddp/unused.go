package ddp

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// settleMissing deals with the parameters that were not Ready in this
// micro-step: an error, or zeros under FindUnused and on a rank without data.
func (d *DDP) settleMissing() error {
	missing := func(i int) bool { return !d.ready[i] && (d.static == nil || d.static[i]) }
	if d.presence.out {
		for i := range d.params {
			if missing(i) {
				d.settleUnused(i)
			}
		}
		return nil
	}
	if d.static != nil {
		if list := d.those(missing); len(list) > 0 {
			return fmt.Errorf("StaticGraph: no gradient for %s, used in the first micro-step. "+
				"If the model may change, set Options.StaticGraph to false (parallel.static_graph in train.yaml)", param.Names(list))
		}
		return nil
	}
	if !d.options.FindUnused {
		if len(d.readyOrder) < len(d.params) {
			return fmt.Errorf("no gradient for %s: every trainable parameter must be Ready in every micro-step. "+
				"If the model is right to leave it out, set Options.FindUnused (parallel.find_unused_parameters in train.yaml), or freeze it", param.Names(d.those(missing)))
		}
		return nil
	}
	for i := range d.params {
		if missing(i) && d.touched[i] {
			return fmt.Errorf("Get of %s without Ready", d.params[i].Name)
		}
	}
	for i := range d.params {
		if missing(i) {
			d.settleUnused(i)
		}
	}
	if d.options.StaticGraph {
		d.static = append([]bool{}, d.ready...)
	}
	return nil
}

// settleStaticallyUnused lets the parameters that are known to be unused not
// hold back their buckets.
func (d *DDP) settleStaticallyUnused() {
	for i, uses := range d.static {
		if !uses {
			d.settleUnused(i)
		}
	}
}

// settleUnused settles parameter i without a gradient of this micro-step. Unless
// an earlier one of the window has left something, the contribution is zero.
func (d *DDP) settleUnused(i int) {
	if d.sync && !d.written[i] {
		d.memory.Clear(d.compute, d.grads[i].Buf)
	}
	d.settle(i)
}

// agreeOnUse finds out which gradients some rank has. Under StaticGraph the
// first answer of all ranks holds for good.
func (d *DDP) agreeOnUse(ctx context.Context) error {
	if !d.options.FindUnused || d.settled {
		return nil
	}
	for i, w := range d.written {
		d.users[i] = 0
		if w {
			d.users[i] = 1
		}
	}
	d.group.AllReduce(d.hostComm, device.Of(d.users), dtype.I32, comm.Sum)
	if err := d.hostComm.Synchronize(ctx); err != nil {
		return fmt.Errorf("asking which gradients are used: %w", err)
	}
	for i, n := range d.users {
		d.used[i] = n > 0
	}
	// A rank without data does not know yet what it will use.
	d.settled = d.options.StaticGraph && !d.presence.partial
	return nil
}
