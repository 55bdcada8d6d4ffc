//go:build cu

package cubridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"gorgonia.org/cu"
)

// align is where allocations of CUDA begin, and what those of an Arena keep to.
const align = 256

// zeroTimeout bounds how long Alloc waits for its memory to be zeroed, which other
// work on the GPU may hold up.
const zeroTimeout = 2 * time.Minute

// Arena hands out memory that cu has allocated. With one in the place of a group's
// own Alloc the gradients of a ddp.DDP lie in memory of cu's:
//
//	plan, err := ddp.NewPlan(params, options.PlanOptions)
//	p, err := cu.MemAlloc(int64(plan.Bytes))
//	arena, err := cubridge.NewArena(dev, p, int64(plan.Bytes))
//	sink, err := ddp.New(ctx, group{joined, arena}, compute, comms, params, options)
//
//	type group struct {
//		*comm.Group
//		arena *cubridge.Arena
//	}
//
//	func (g group) Alloc(n int) (device.Buffer, error) { return g.arena.Alloc(n) }
//
// This holds from two ranks on, and for gradients that travel in their own type;
// else ddp takes memory of the device's. Memory of the group's own is faster where
// GPUs of one host could reduce it by their copy engines, and NCCL has registered it.
type Arena struct {
	dev *cuda.Device

	mu   sync.Mutex
	rest device.Buffer // what is not handed out
}

var _ device.Allocator = (*Arena)(nil)

// NewArena makes an arena of n bytes at p, within one allocation of cu's and a multiple
// of 256. The program frees it with cu, once what was allocated from it is not used any
// more: for a DDP, behind its Close.
func NewArena(d *cuda.Device, p cu.DevicePtr, n int64) (*Arena, error) {
	if p%align != 0 {
		return nil, fmt.Errorf("%s: an arena at %v: its address has to be a multiple of %d", d, p, align)
	}
	b, err := BorrowMemory(d, p, n)
	if err != nil {
		return nil, err
	}
	return &Arena{dev: d, rest: b}, nil
}

// Alloc returns the next n bytes of the arena, zeroed, at a multiple of 256. It waits
// for the zeroing, so that every stream sees it. Nothing is ever given back. It fails
// where the arena has fewer bytes left.
func (a *Arena) Alloc(n int) (device.Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < 0 || n > a.rest.Len() {
		return device.Buffer{}, fmt.Errorf("%s: %d bytes of an arena of cu's memory, which has %d left", a.dev, n, a.rest.Len())
	}
	b := a.rest.Slice(0, n)
	if err := a.zero(b); err != nil {
		return device.Buffer{}, fmt.Errorf("%s: zeroing %d bytes of cu's memory: %w", a.dev, n, err)
	}
	a.rest = a.rest.Slice(min((n+align-1)/align*align, a.rest.Len()), a.rest.Len())
	return b, nil
}

func (a *Arena) zero(b device.Buffer) error {
	s, err := a.dev.NewStream("zero")
	if err != nil {
		return err
	}
	s.(*cuda.Stream).Clear(b)
	ctx, cancel := context.WithTimeoutCause(context.Background(), zeroTimeout,
		fmt.Errorf("not done after %v: other work holds up the GPU", zeroTimeout))
	defer cancel()
	return errors.Join(s.Synchronize(ctx), s.Close())
}
