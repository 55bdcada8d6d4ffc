package dma

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Join makes the team of size ranks, of which this is me, on d. It fails, on every
// rank alike, where some GPU cannot write another's memory, or where what arrives is
// not what was sent.
func Join(ctx context.Context, d *cuda.Device, me, size int, exchange Exchange) (*Team, error) {
	if size < 2 || size > MaxRanks {
		return nil, fmt.Errorf("copy engines: %d ranks, want 2 to %d", size, MaxRanks)
	}
	t := &Team{d: d, me: me, size: size, exchange: exchange, sums: map[dtype.DType]*cuda.Function{}}
	err := t.agree(ctx, "prepared", t.prepare(ctx))
	if err == nil {
		err = t.agree(ctx, "verified", t.verify(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, t.Abort(err, abortWithin), t.Close())
	}
	return t, nil
}

func (t *Team) prepare(ctx context.Context) (err error) {
	if t.module, err = nvrtc.Module(t.d, "dma sum.cu", text); err != nil {
		return err
	}
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		if t.sums[dt], err = t.module.Function("sum_" + dt.String()); err != nil {
			return err
		}
	}
	s, err := t.d.NewStream("copy engines' rescue")
	if err != nil {
		return err
	}
	t.rescue = s.(*cuda.Stream)
	t.seen, err = t.d.AllocHost(4)
	return err
}

// agree makes one rank's failure every rank's.
func (t *Team) agree(ctx context.Context, key string, mine error) error {
	said := ""
	if mine != nil {
		said = mine.Error()
	}
	all, err := t.exchange(ctx, key, []byte(said))
	if err != nil {
		return errors.Join(mine, fmt.Errorf("copy engines: %w", err))
	}
	for r, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("copy engines: rank %d: %s", r, text)
		}
	}
	return nil
}

// meet shares the team's own memory.
func (t *Team) meet(ctx context.Context) (err error) {
	if t.flags, err = t.share(ctx, "flags", (2*t.size+1)*lineBytes); err != nil {
		return err
	}
	if t.scratch, err = t.share(ctx, "scratch", t.size*SlotBytes); err != nil {
		return err
	}
	hello, err := t.share(ctx, "hello", 4*helloCount)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.regions = append(t.regions, hello)
	return nil
}

// helloCount is how many elements the first sum has, which is looked at.
const helloCount = 64 << 10

// verify sums known numbers.
func (t *Team) verify(ctx context.Context) error {
	if err := t.meet(ctx); err != nil {
		return err
	}
	hello := t.regions[0].own
	host, err := t.d.AllocHost(4 * helloCount)
	if err != nil {
		return err
	}
	v := device.View[float32](host)
	for i := range v {
		v[i] = float32(i%1000 + t.me)
	}
	s, err := t.d.NewStream("copy engines' first sum")
	if err != nil {
		return err
	}
	defer s.Close()
	s.Copy(hello, host)
	if err := t.AllReduce(s.(*cuda.Stream), hello, dtype.F32, false); err != nil {
		return err
	}
	s.Copy(host, hello)
	if err := s.Synchronize(ctx); err != nil {
		// A stream that waits for a peer's counter would wait for ever.
		return errors.Join(fmt.Errorf("the first sum is not done: %w", err), t.Abort(err, abortWithin))
	}
	for i := range v {
		if want := float32(t.size*(i%1000) + t.size*(t.size-1)/2); v[i] != want {
			err = fmt.Errorf("the GPUs exchange wrong data: element %d of the first sum is %v, want %v (over PCIe, access control (ACS) or an IOMMU can do that)", i, v[i], want)
			break
		}
	}
	return errors.Join(err, t.d.Free(host))
}
