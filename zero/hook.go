package zero

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// openHook tells Options.Compress where the buckets lie.
func (z *Zero) openHook() error {
	h := z.plan.hook
	if h == nil {
		return nil
	}
	g, err := compress.GroupOf(z.group)
	if err == nil {
		err = h.Open(compress.Env{
			Group: g, Op: z.options.Op, Device: z.compute.Device(), Memory: z.memory,
			Private: func(n int) (device.Buffer, error) { return z.private(&z.held.Compress, n) },
			Shared:  func(n int) (device.Buffer, error) { return z.shared(&z.held.Compress, n) },
			Pinned: func(n int) (device.Buffer, error) {
				b, err := z.compute.Device().AllocHost(n)
				if err == nil {
					z.own = append(z.own, b)
				}
				return b, err
			},
		}, z.plan.Layout())
	}
	if err != nil {
		return fmt.Errorf("zero: %s: Options.Compress, %s: %w", agree.Who(z.group, z.group.Rank()), h, err)
	}
	return nil
}

// compressed is this rank's part of the sum in f32, until the next reduction, where
// Options.Compress makes it.
func (z *Zero) compressed(b *bucket) (mine tensor.Tensor, ok bool) {
	if z.plan.hook == nil || b.Padded == 0 {
		return mine, false
	}
	mine, sent := z.plan.hook.Reduce(z.comm, z.next, b.flat)
	z.sent.ReduceScatter += sent
	return mine, !mine.None()
}
