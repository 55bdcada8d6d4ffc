package ddp

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/device"
)

// compresses says that a hook reduces the buckets.
func (d *DDP) compresses() bool { return d.options.Compress != nil && d.group.Size() > 1 }

// openHook tells Options.Compress where the buckets lie.
func (d *DDP) openHook() error {
	if !d.compresses() {
		return nil
	}
	h := d.options.Compress
	g, err := compress.GroupOf(d.group)
	if err == nil {
		err = h.Open(compress.Env{
			Group: g, Op: d.options.Op, Device: d.compute.Device(), Memory: d.memory,
			Private: func(n int) (device.Buffer, error) { return d.private(d.compute.Device().Alloc(n)) }, Shared: d.shared,
			Pinned: func(n int) (device.Buffer, error) { return d.private(d.compute.Device().AllocHost(n)) },
		}, d.plan.Layout(d.group.Size()))
	}
	if err != nil {
		return fmt.Errorf("ddp: %s: Options.Compress, %s: %w", agree.Who(d.group, d.group.Rank()), h, err)
	}
	return nil
}
