package ddp

import (
	"context"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// agreeOnOrder makes the ready order of one rank's first synced micro-step
// everyone's order: rank 0's, or that of the first rank that has data. It does
// nothing later on, where the order was given, and where it may change from step
// to step.
func (d *DDP) agreeOnOrder(ctx context.Context) error {
	if d.plan.Rebuilt || d.options.FindUnused && !d.options.StaticGraph {
		return nil
	}
	order := d.readyOrder // all of them, unless some are unused: those come last
	for _, b := range d.plan.Buckets {
		for _, p := range b.Params {
			if i := d.index[p]; !d.ready[i] {
				order = append(order, int32(i))
			}
		}
	}
	d.group.Broadcast(d.hostComm, device.Of(order), dtype.I32, d.presence.lead)
	if err := d.hostComm.Synchronize(ctx); err != nil {
		return fmt.Errorf("learning the ready order of %s: %w", agree.Who(d.group, d.presence.lead), err)
	}
	names := make([]string, len(order))
	for at, i := range order {
		names[at] = d.params[i].Name
	}
	d.reorder = names
	return nil
}

// rebuild lays the buckets out anew in the agreed order. It runs where a window
// ends, when the last reader of the old gradients is enqueued; all of the
// memory is cleared on the compute stream, behind that reader, for the padding
// lies elsewhere now.
func (d *DDP) rebuild() error {
	if d.reorder == nil {
		return nil
	}
	o := d.options.PlanOptions
	o.Order, d.reorder = d.reorder, nil
	plan, err := NewPlan(d.params, o)
	if err != nil {
		return err
	}
	if slices.Equal(plan.Order(), d.plan.Order()) {
		d.plan.Rebuilt = true
		return nil
	}
	d.memory.Clear(d.compute, d.arena)
	d.forget() // the old buckets' events
	d.layOut(plan)
	return d.openHook()
}
