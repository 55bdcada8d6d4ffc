package dma

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// firstSums sums known numbers in every way.
func (t *Team) firstSums(ctx context.Context) error {
	for _, first := range []struct {
		name  string
		bytes int
		sum   func(s *cuda.Stream, b device.Buffer) error
	}{
		{"copy engines", 4 * helloCount, func(s *cuda.Stream, b device.Buffer) error { return t.AllReduce(s, b, dtype.F32, false) }},
		{"kernels, marked", t.limits.marked, t.firstExchange},
		{"kernels, flagged", 4 * helloCount, t.firstExchange},
	} {
		if err := t.firstSum(ctx, t.regions[0].own.Slice(0, first.bytes), first.sum); err != nil {
			return fmt.Errorf("%s: %w", first.name, err)
		}
	}
	return nil
}

func (t *Team) firstExchange(s *cuda.Stream, b device.Buffer) error {
	c := &Call{To: b, From: b}
	c.Kind, c.DType, c.Op, c.Root, c.Count = transport.AllReduce, dtype.F32, transport.Sum, -1, uint64(b.Len()/4)
	return t.Exchange(s, c)
}

func (t *Team) firstSum(ctx context.Context, b device.Buffer, sum func(s *cuda.Stream, b device.Buffer) error) error {
	return t.onHost(ctx, b.Len(), func(s *cuda.Stream, host device.Buffer) error {
		v := device.View[float32](host)
		for i := range v {
			v[i] = float32(i%1000 + t.me)
		}
		s.Copy(b, host)
		if err := sum(s, b); err != nil {
			return err
		}
		s.Copy(host, b)
		if err := s.Synchronize(ctx); err != nil {
			// A stream that waits for a peer would wait for ever.
			return errors.Join(fmt.Errorf("the first sum is not done: %w", err), t.Abort(err, abortWithin))
		}
		for i := range v {
			if want := float32(t.size*(i%1000) + t.size*(t.size-1)/2); v[i] != want {
				return wrong(fmt.Sprintf("%v: element %d of the first sum is %v, want %v", ErrWrongData, i, v[i], want))
			}
		}
		return nil
	})
}
