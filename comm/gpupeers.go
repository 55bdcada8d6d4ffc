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

// byPeers moves the memory of the GPUs of one host without NCCL: by kernels, and what lies
// in memory that Alloc gave also by kernels that sum arrays where they are, or by copy
// engines, which cost a computation beside them next to nothing. Calls for which the engine
// under it is the cheapest it leaves to that: see choose.
type byPeers struct {
	under gpuEngine // nil: none can be had, or is wanted
	algo  Algorithm // taken where a call can be made so; Auto: the cheapest
	costs ways      // typical ones
	tuned *tuning   // what was measured of them
	picks gpuPicks
	rank  int
	size  int
	team  *dma.Team
	last  order               // of the team's collectives, which share memory and counters
	sends [dma.MaxRanks]order // of what goes to each rank by itself
	recvs [dma.MaxRanks]order // of what comes from each
}

// joinPeers puts byPeers over an engine, or over none, where the ranks are of one host
// and their GPUs reach each other's memory. why tells what is in the way elsewhere.
func joinPeers(ctx context.Context, g *Group, ex exchangeUnder, under gpuEngine) (e gpuEngine, why error) {
	switch hosts := hostsOf(g.members); {
	case len(hosts) > 1:
		return under, fmt.Errorf("the ranks are on %d hosts", len(hosts))
	case g.o.Size > dma.MaxRanks:
		return under, fmt.Errorf("there are more than %d ranks", dma.MaxRanks)
	}
	team, err := dma.Join(ctx, g.o.gpu, dma.Options{
		Rank: g.o.Rank, Size: g.o.Size, Exchange: ex.all(g.o.Rank, g.o.Size), MaxBlocks: g.o.MaxCTAs,
	})
	if err != nil {
		return under, err
	}
	costs := overPCIe
	if team.NVLinked() {
		costs = overNVLink
	}
	return &byPeers{under: under, algo: g.o.Algo, costs: costs, tuned: &g.tuned, rank: g.o.Rank, size: g.o.Size, team: team}, nil
}

// how names the places too where ranks read and write each other's memory at their own.
func (b *byPeers) how(c *call) string {
	a := c.algorithm
	if a == CopyEngines && c.Kind == transport.ReduceScatter || a != CopyEngines && a != InPlace {
		return string(a)
	}
	at := func(d device.Buffer) string {
		alloc, offset, _ := b.team.Where(d)
		return fmt.Sprintf("byte %d of Alloc %d", offset, alloc)
	}
	switch {
	case c.Kind == transport.ReduceScatter:
		return fmt.Sprintf("%s from %s", a, at(c.from))
	case a == InPlace && c.to.Addr() != c.from.Addr():
		return fmt.Sprintf("%s from %s to %s", a, at(c.from), at(c.to))
	}
	return fmt.Sprintf("%s at %s", a, at(c.to))
}

// enqueue makes the call as algorithm has said.
func (b *byPeers) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	switch c.algorithm {
	case CopyEngines:
		return orders{&b.last}.on(s, func() error { return b.copy(s, c) })
	case Kernels, InPlace:
		return b.behind(c).on(s, func() error { return b.kernels(s, c) })
	}
	return b.under.enqueue(s, c)
}

func (b *byPeers) kernels(s *cuda.Stream, c *call) error {
	if c.algorithm == InPlace {
		return b.team.Direct(s, theirs(c))
	}
	return b.team.Exchange(s, theirs(c))
}

// marks reports whether kernels make the call that say themselves how far it is.
func (b *byPeers) marks(c *call) bool {
	return (c.algorithm == Kernels || c.algorithm == InPlace) && !pairwise(c) && (c.Count > 0 || c.Kind == transport.Barrier)
}

// mark enqueues such a call.
func (b *byPeers) mark(s *cuda.Stream, c *call) (dma.Mark, error) {
	b.last.precede(s)
	if err := b.kernels(s, c); err != nil {
		return dma.Mark{}, err
	}
	m := b.team.Latest()
	b.last.is(s, nil, m)
	return m, nil
}

func (b *byPeers) copy(s *cuda.Stream, c *call) error {
	switch c.Kind {
	case transport.ReduceScatter:
		return b.team.ReduceScatter(s, c.to, c.from, c.DType, c.Op == Avg)
	case transport.AllGather:
		return b.team.AllGather(s, c.to, c.from)
	case transport.Broadcast:
		return b.team.Broadcast(s, c.to, int(c.Root))
	case transport.AllToAll:
		return b.team.AllToAll(s, c.to, c.from)
	}
	return b.team.AllReduce(s, c.to, c.DType, c.Op == Avg)
}

// alloc gives memory of the team.
func (b *byPeers) alloc(n int, within time.Duration) (device.Buffer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return b.team.Alloc(ctx, n)
}

func (b *byPeers) String() string {
	s := "kernels for sums and small arrays, copy engines for the rest, "
	if !b.team.NVLinked() {
		s = "kernels for small arrays and copy engines for large ones, without NVLink, "
	}
	if b.under == nil {
		return fmt.Sprintf("%sof %d ranks", s, b.size)
	}
	return s + "else " + b.under.String()
}

func (b *byPeers) failed() error {
	if b.under == nil {
		return nil
	}
	return b.under.failed()
}

// abort ends both engines' calls at the same time, for they may wait for each other.
func (b *byPeers) abort() error {
	var team error
	var ending sync.WaitGroup
	ending.Go(func() { team = b.team.Abort(errors.New("the group has failed"), patience) }) // ends within patience
	var under error
	if b.under != nil {
		under = b.under.abort()
	}
	ending.Wait()
	return errors.Join(under, team)
}

func (b *byPeers) close() error {
	var under error
	if b.under != nil {
		under = b.under.close()
	}
	return errors.Join(under, b.team.Close())
}
