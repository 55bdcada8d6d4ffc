package comm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// copiesFrom is the size in bytes from which copies and counters cost less than
// NCCL's kernel, which is quicker to start and occupies multiprocessors.
const copiesFrom = 1 << 20

// byCopies sums and gathers large arrays in memory that Alloc gave by the GPUs' copy
// engines, and leaves the other calls to the engine under it. Beside a computation that
// wants all of the GPU they then cost next to nothing.
type byCopies struct {
	gpuEngine
	rank int
	team *dma.Team
	last order // of the team's calls, which share slots and counters
}

// order keeps work in its order that is enqueued on different streams.
type order struct {
	stream *cuda.Stream // of the work before
	end    device.Event // of that work
}

// on enqueues work on s behind what was enqueued before.
func (o *order) on(s *cuda.Stream, enqueue func() error) error {
	if o.stream != nil && o.stream != s {
		s.Wait(o.end)
	}
	err := enqueue()
	device.Release(o.end)
	o.stream, o.end = s, s.Record()
	return err
}

// joinCopies puts byCopies over an engine where the ranks are of one host and their
// GPUs reach each other's memory. why tells what is in the way elsewhere.
func joinCopies(ctx context.Context, g *Group, ex exchangeUnder, under gpuEngine) (e gpuEngine, why error) {
	switch hosts := hostsOf(g.members); {
	case g.o.Engine != "auto":
		return under, fmt.Errorf("engine %s is asked for", g.o.Engine)
	case len(hosts) > 1:
		return under, fmt.Errorf("the ranks are on %d hosts", len(hosts))
	case g.o.Size > dma.MaxRanks:
		return under, fmt.Errorf("there are more than %d ranks", dma.MaxRanks)
	}
	team, err := dma.Join(ctx, g.o.gpu, g.o.Rank, g.o.Size, ex.all(g.o.Rank, g.o.Size))
	if err != nil {
		return under, err
	}
	return &byCopies{gpuEngine: under, rank: g.o.Rank, team: team}, nil
}

// all is an exchange of every rank's bytes through the store.
func (e exchangeUnder) all(rank, size int) dma.Exchange {
	return func(ctx context.Context, key string, mine []byte) ([][]byte, error) {
		entry := func(r int) string { return fmt.Sprintf("dma/%s/%d", key, r) }
		if err := e.Set(ctx, entry(rank), mine); err != nil {
			return nil, err
		}
		all := make([][]byte, size)
		for r := range all {
			var err error
			if all[r], err = e.Wait(ctx, entry(r)); err != nil {
				return nil, fmt.Errorf("waiting for rank %d: %w", r, err)
			}
		}
		return all, nil
	}
}

// takes reports whether the copy engines make the call. All ranks must find the same,
// so it asks for nothing that may differ between them where they call alike.
func (b *byCopies) takes(c *call) bool {
	if max(c.to.Len(), c.from.Len()) < copiesFrom {
		return false
	}
	sums := c.Op == Sum || c.Op == Avg
	switch c.Kind {
	case transport.AllReduce:
		return sums && c.to.Addr() == c.from.Addr() && b.team.Takes(c.to, c.DType)
	case transport.ReduceScatter: // in place
		own := c.from.Addr() + uintptr(b.rank*c.to.Len())
		return sums && c.to.Addr() == own && b.team.Takes(c.from, c.DType) && b.team.Adds(c.to, c.DType)
	case transport.AllGather:
		_, _, ok := b.team.Where(c.to)
		return ok
	}
	return false
}

func (b *byCopies) algorithm(c *call) Algorithm {
	if b.takes(c) {
		return CopyEngines
	}
	return b.gpuEngine.algorithm(c)
}

// how names the place too where ranks write to each other's memory at their own.
func (b *byCopies) how(c *call) string {
	switch {
	case !b.takes(c):
		return string(b.gpuEngine.algorithm(c))
	case c.Kind == transport.ReduceScatter:
		return string(CopyEngines)
	}
	alloc, offset, _ := b.team.Where(c.to)
	return fmt.Sprintf("%s at byte %d of Alloc %d", CopyEngines, offset, alloc)
}

func (b *byCopies) enqueue(s *cuda.Stream, c *call) error {
	if !b.takes(c) {
		return b.gpuEngine.enqueue(s, c)
	}
	return b.last.on(s, func() error {
		switch c.Kind {
		case transport.ReduceScatter:
			return b.team.ReduceScatter(s, c.to, c.from, c.DType, c.Op == Avg)
		case transport.AllGather:
			return b.team.AllGather(s, c.to, c.from)
		}
		return b.team.AllReduce(s, c.to, c.DType, c.Op == Avg)
	})
}

// alloc gives memory of the team.
func (b *byCopies) alloc(n int, within time.Duration) (device.Buffer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return b.team.Alloc(ctx, n)
}

func (b *byCopies) String() string {
	return "copy engines for large arrays, else " + b.gpuEngine.String()
}

// abort ends both engines' calls at the same time, for they may wait for each other.
func (b *byCopies) abort() error {
	var copies error
	var ending sync.WaitGroup
	ending.Go(func() { copies = b.team.Abort(errors.New("the group has failed"), patience) }) // ends within patience
	err := b.gpuEngine.abort()
	ending.Wait()
	return errors.Join(err, copies)
}

func (b *byCopies) close() error { return errors.Join(b.gpuEngine.close(), b.team.Close()) }
