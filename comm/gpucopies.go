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

// What byPeers makes of calls beside CopyEngines, see comm/dma. They are no options.
const (
	Kernels Algorithm = "kernels" // write to other GPUs' memory that is kept for it
	InPlace Algorithm = "direct"  // kernels read and write other GPUs' arrays where they are
)

// Who makes a call on GPU memory within a host, by the bytes of its full array. Measured
// on two GPUs that NVLink joins, see docs/benchmarks/gpu-peers.md, but for sumsByCopiesFrom.
const (
	// kernelsUpTo is where NCCL, whose kernels pipeline, overtakes those that write to
	// memory kept for it.
	kernelsUpTo = 32 << 20
	// sumsInPlaceFrom and scattersInPlaceFrom are where it pays to wait for the others before
	// and after a sum, to spare the copies.
	sumsInPlaceFrom, scattersInPlaceFrom = 2 << 20, 8 << 20
	// sumsByCopiesFrom is where copies make sums in memory from Alloc between GPUs that NVLink
	// does not join: a kernel's reads of single packs take long over PCIe. Over NVLink they
	// are faster than copies, and training beside either takes the same time.
	sumsByCopiesFrom = 1 << 20
	// copiesFrom is where copies and counters cost less than a kernel, for what is no sum.
	copiesFrom = 16 << 20
)

// byPeers moves the memory of the GPUs of one host without NCCL: small arrays by kernels,
// and large ones in memory that Alloc gave by kernels that sum them where they are, or by
// copy engines, which cost a computation beside them next to nothing. It leaves the other
// calls to the engine under it; where there is none, kernels make all that they can.
type byPeers struct {
	under gpuEngine // nil: none can be had, or is wanted
	rank  int
	size  int
	team  *dma.Team
	last  order               // of the team's collectives, which share memory and counters
	sends [dma.MaxRanks]order // of what goes to each rank by itself
	recvs [dma.MaxRanks]order // of what comes from each
}

// order keeps work in its order that is enqueued on different streams.
type order struct {
	stream *cuda.Stream // of the work before
	end    *cuda.Event  // of that work, nil where it has a mark
	mark   dma.Mark
}

// precede makes work on s come behind the work before.
func (o *order) precede(s *cuda.Stream) {
	switch {
	case o.stream == nil || o.stream == s:
	case o.end != nil:
		s.Wait(o.end)
	default:
		o.mark.Precede(s)
	}
}

// is makes work that ends at an event or has a mark the one before.
func (o *order) is(s *cuda.Stream, end *cuda.Event, m dma.Mark) {
	if o.end != nil {
		o.end.Release()
	}
	*o = order{s, end, m}
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
	return &byPeers{under: under, rank: g.o.Rank, size: g.o.Size, team: team}, nil
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

// choose tells who makes the call: one of the team's algorithms or "", which is the
// engine under it. All ranks must find the same, so it asks for nothing that may differ
// between them where they call alike.
func (b *byPeers) choose(c *call) Algorithm {
	size := b.bytes(c)
	switch {
	case b.copies(c):
		return CopyEngines
	case size >= inPlaceFrom(c) && b.team.Reaches(theirs(c)):
		return InPlace
	case b.under == nil, size < kernelsUpTo && !pairwise(c):
		return Kernels
	}
	return ""
}

func inPlaceFrom(c *call) int {
	if c.Kind == transport.ReduceScatter {
		return scattersInPlaceFrom
	}
	return sumsInPlaceFrom
}

// theirs is the call as the team has it.
func theirs(c *call) *dma.Call {
	return &dma.Call{Header: c.Header, To: c.to, From: c.from, SendCounts: c.sendCounts, RecvCounts: c.recvCounts, Peer: c.peer}
}

// pairwise reports whether ranks know only of what they themselves send and get: an
// AllToAllV, a Send or its Recv. Where there is NCCL, it makes them.
func pairwise(c *call) bool { return c.sendCounts != nil || c.Kind == transport.Send }

// bytes is the size of the full array.
func (b *byPeers) bytes(c *call) int {
	n := c.bytes(int(c.Count))
	switch c.Kind {
	case transport.AllReduce, transport.Broadcast, transport.Reduce:
		return n
	}
	return b.size * n
}

// copies reports whether the copy engines can make the call, and are to.
func (b *byPeers) copies(c *call) bool {
	if pairwise(c) {
		return false
	}
	size := b.bytes(c)
	sums := !b.team.NVLinked() && size >= sumsByCopiesFrom && (c.Op == Sum || c.Op == Avg)
	switch c.Kind {
	case transport.AllReduce:
		return sums && c.to.Addr() == c.from.Addr() && b.team.Takes(c.to, c.DType)
	case transport.ReduceScatter: // in place
		own := c.from.Addr() + uintptr(b.rank*c.to.Len())
		return sums && c.to.Addr() == own && b.team.Takes(c.from, c.DType) && b.team.Adds(c.to, c.DType)
	case transport.AllGather, transport.Broadcast, transport.AllToAll:
		_, _, ok := b.team.Where(c.to)
		return ok && size >= copiesFrom
	}
	return false
}

func (b *byPeers) algorithm(c *call) Algorithm {
	if a := b.choose(c); a != "" {
		return a
	}
	return b.under.algorithm(c)
}

// how names the places too where ranks read and write each other's memory at their own.
func (b *byPeers) how(c *call) string {
	a := b.algorithm(c)
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

func (b *byPeers) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	switch b.choose(c) {
	case CopyEngines:
		return orders{&b.last}.on(s, func() error { return b.copy(s, c) })
	case Kernels, InPlace:
		return b.behind(c).on(s, func() error { return b.kernels(s, c) })
	}
	return b.under.enqueue(s, c)
}

func (b *byPeers) kernels(s *cuda.Stream, c *call) error {
	if b.choose(c) == InPlace {
		return b.team.Direct(s, theirs(c))
	}
	return b.team.Exchange(s, theirs(c))
}

// marks reports whether kernels make the call that say themselves how far it is.
func (b *byPeers) marks(c *call) bool {
	a := b.choose(c)
	return (a == Kernels || a == InPlace) && !pairwise(c) && (b.bytes(c) > 0 || c.Kind == transport.Barrier)
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

// behind is what the call has to be behind: collectives behind collectives, and what
// moves between two ranks in one direction behind its like, and behind nothing else, for
// the ranks may make these calls in different orders.
func (b *byPeers) behind(c *call) orders {
	switch {
	case c.Kind == transport.Send && c.peer == int(c.Root):
		return orders{&b.sends[c.peer]}
	case c.Kind == transport.Send:
		return orders{&b.recvs[c.peer]}
	case c.sendCounts == nil:
		return orders{&b.last}
	}
	var all orders
	for p := range b.size {
		if p != b.rank {
			all = append(all, &b.sends[p], &b.recvs[p])
		}
	}
	return all
}

// orders is several orders that work is in.
type orders []*order

// on enqueues work on s behind what was enqueued before, and returns the place behind it.
func (all orders) on(s *cuda.Stream, enqueue func() error) (*cuda.Event, error) {
	for _, o := range all {
		o.precede(s)
	}
	end, err := placed(s, enqueue())
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		o.is(s, end.Hold(), dma.Mark{})
	}
	return end, nil
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
