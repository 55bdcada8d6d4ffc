package comm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/runtime/device"
)

// chunk is GPU memory that a group has allocated.
type chunk struct {
	buf  device.Buffer
	nccl bool // by NCCL
	team bool // by the copy engines' team, which frees it; else by the device
}

// clearWithin bounds how long new memory may take to be zeroed, behind other work.
const clearWithin = 2 * time.Minute

// allocGPU is Alloc for a group with a GPU. The ranks then meet over host memory.
func (g *Group) allocGPU(c *call) (device.Buffer, error) {
	u, n := g.gpu, int(c.Count)
	if u.engine == nil {
		return device.Buffer{}, g.refuse(nil, c, u.why).Err()
	}
	if n == 0 {
		return device.Buffer{}, g.place(here{}, c).Err()
	}
	new, err := u.alloc(n)
	if err != nil {
		return device.Buffer{}, g.refuse(nil, c, err).Err()
	}
	g.order.Lock()
	u.memory = append(u.memory, new)
	g.order.Unlock()
	if err := g.place(here{}, c).Err(); err != nil {
		return device.Buffer{}, err
	}
	return new.buf, nil
}

func (u *gpu) alloc(n int) (chunk, error) {
	if e, ok := u.engine.(*byPeers); ok {
		buf, err := e.alloc(n, u.g.o.Timeout)
		return chunk{buf: buf, team: true}, err
	}
	if u.lib == nil {
		buf, err := u.dev.Alloc(n)
		return chunk{buf: buf}, err
	}
	addr, err := u.lib.Alloc(u.dev, n)
	if err != nil {
		// The device's own memory does as well, or its error says more.
		if !errors.Is(err, nccl.ErrNoAlloc) {
			u.g.o.Logger.Warn("comm: memory of the device instead of NCCL's", "group", u.g.o.Name, "rank", u.g.o.Rank, "bytes", n, "err", err)
		}
		buf, err := u.dev.Alloc(n)
		return chunk{buf: buf}, err
	}
	new := chunk{buf: device.At(addr, n), nccl: true}
	ctx, cancel := context.WithTimeoutCause(context.Background(), clearWithin, fmt.Errorf("%d new bytes are not zeroed after %s", n, clearWithin))
	defer cancel()
	u.stream.Clear(new.buf)
	if err := u.stream.Synchronize(ctx); err != nil {
		return chunk{}, errors.Join(err, u.free(new))
	}
	return new, nil
}

func (u *gpu) free(c chunk) error {
	if c.team {
		return nil
	}
	if c.nccl {
		return u.lib.Free(u.dev, c.buf.Addr())
	}
	return u.dev.Free(c.buf)
}

// release frees all that alloc gave.
func (u *gpu) release() error {
	u.g.order.Lock()
	defer u.g.order.Unlock()
	var errs []error
	for _, c := range u.memory {
		errs = append(errs, u.free(c))
	}
	u.memory = nil
	return errors.Join(errs...)
}
