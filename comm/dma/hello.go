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

// helloCount is how many elements the first sums have, which are looked at.
const helloCount = 64 << 10

// patternBytes is what each GPU writes to each other's memory to see that it arrives:
// to the writer's place in the first half of the memory of the first sums. The second
// half holds what the owner has written itself, for the others to read.
const patternBytes = 4 * helloCount / 2 / MaxRanks

// greeting is what a rank's first calls work with.
type greeting struct {
	t    *Team
	s    *cuda.Stream
	host device.Buffer // as large as there
	b    shared        // what all GPUs reach
}

// hello sees that each GPU reads what the others write, and sums known numbers in every
// way. Where one process has several GPUs, to allocate or to free memory may wait for
// what runs on any of them, and that for this rank: so all have what they need before
// the first call, and free it after the last.
func (t *Team) hello(ctx context.Context) error {
	host, err := t.d.AllocHost(4 * helloCount)
	if err != nil {
		return t.agree(ctx, "ready", err)
	}
	s, err := t.d.NewStream("team's first calls")
	if err != nil {
		return t.agree(ctx, "ready", errors.Join(err, t.d.Free(host)))
	}
	h := &greeting{t: t, s: s.(*cuda.Stream), host: host, b: t.regions[0]}
	err = t.agree(ctx, "ready", nil)
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"written", h.write},
		{"read", h.read},
		{"summed by copies", h.sumByCopies},
		{"summed by marked kernels", func(ctx context.Context) error { return h.sumByKernels(ctx, t.limits.marked) }},
		{"summed by flagged kernels", func(ctx context.Context) error { return h.sumByKernels(ctx, 4*helloCount) }},
	} {
		if err == nil {
			err = t.agree(ctx, step.name, step.do(ctx))
		}
	}
	if err != nil {
		// A stream that waits for a peer would wait for ever.
		err = errors.Join(err, t.Abort(err, abortWithin))
	}
	return errors.Join(err, s.Close(), t.d.Free(host))
}

// pattern is what rank r writes: another word at every place, and from every rank.
func pattern(r int, words []uint32) {
	for i := range words {
		words[i] = (uint32(i)*2654435761 ^ uint32(r+1)*0x9e3779b9) | 1
	}
}

// written is where the pattern of rank writer lies in the memory b of another.
func written(b device.Buffer, writer int) device.Buffer {
	return b.Slice(writer*patternBytes, (writer+1)*patternBytes)
}

// kept is where a rank's own pattern lies in its memory b.
func kept(b device.Buffer) device.Buffer { return b.Slice(b.Len()/2, b.Len()/2+patternBytes) }

// write puts this rank's pattern into its own memory and from there into everybody's.
func (h *greeting) write(ctx context.Context) error {
	host := h.host.Slice(0, patternBytes)
	pattern(h.t.me, device.View[uint32](host))
	h.s.Copy(kept(h.b.own), host)
	for p := range h.t.peers() {
		h.s.Copy(written(h.b.ranks[p], h.t.me), kept(h.b.own))
	}
	return h.s.Synchronize(ctx)
}

// read looks at what the others have written here, and at what they have at home.
func (h *greeting) read(ctx context.Context) error {
	var errs []error
	for p := range h.t.peers() {
		errs = append(errs,
			h.is(ctx, written(h.b.own, p), p, "what it wrote to"),
			h.is(ctx, kept(h.b.ranks[p]), p, "what is read from it by"))
	}
	return errors.Join(errs...)
}

// is compares b with rank p's pattern.
func (h *greeting) is(ctx context.Context, b device.Buffer, p int, what string) error {
	host := h.host.Slice(0, patternBytes)
	h.s.Copy(host, b)
	if err := h.s.Synchronize(ctx); err != nil {
		return err
	}
	want := make([]uint32, patternBytes/4)
	pattern(p, want)
	for i, got := range device.View[uint32](host) {
		if got != want[i] {
			return wrong(fmt.Sprintf("%v: rank %d on GPU %s: %s rank %d on GPU %s is %#x at word %d, want %#x (over PCIe, access control (ACS) or an IOMMU can do that)",
				ErrWrongData, p, h.t.cards[p], what, h.t.me, h.t.cards[h.t.me], got, i, want[i]))
		}
	}
	return nil
}

func (h *greeting) sumByCopies(ctx context.Context) error {
	return h.sum(ctx, h.b.own, func(b device.Buffer) error { return h.t.AllReduce(h.s, b, dtype.F32, false) })
}

func (h *greeting) sumByKernels(ctx context.Context, n int) error {
	return h.sum(ctx, h.b.own.Slice(0, n), func(b device.Buffer) error {
		c := &Call{To: b, From: b}
		c.Kind, c.DType, c.Op, c.Root, c.Count = transport.AllReduce, dtype.F32, transport.Sum, -1, uint64(n/4)
		return h.t.Exchange(h.s, c)
	})
}

// sum makes a sum of b, and looks at it.
func (h *greeting) sum(ctx context.Context, b device.Buffer, make func(b device.Buffer) error) error {
	host := h.host.Slice(0, b.Len())
	v := device.View[float32](host)
	for i := range v {
		v[i] = float32(i%1000 + h.t.me)
	}
	h.s.Copy(b, host)
	if err := make(b); err != nil {
		return err
	}
	h.s.Copy(host, b)
	if err := h.s.Synchronize(ctx); err != nil {
		return fmt.Errorf("the first sum is not done: %w", err)
	}
	n := h.t.size
	for i := range v {
		if want := float32(n*(i%1000) + n*(n-1)/2); v[i] != want {
			return wrong(fmt.Sprintf("%v: element %d of the first sum is %v, want %v", ErrWrongData, i, v[i], want))
		}
	}
	return nil
}
