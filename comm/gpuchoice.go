package comm

import (
	"time"

	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
)

// way is what it costs to make a call in some way: latency, and what a GPU sends or gets over
// bandwidth, in bytes per second.
type way struct {
	latency   time.Duration
	bandwidth float64
}

func (w way) seconds(moved float64) float64 { return w.latency.Seconds() + moved/w.bandwidth }

// ways is the ways of sums, and of what only moves.
type ways struct{ sums, moves map[Algorithm]way }

// Typical figures, which a measurement corrects (see gpu.tune). Over NVLink they are those of
// two H200, see docs/benchmarks/gpu-peers.md; over PCIe, where a kernel's reads of single
// packs take long, they are estimates. NCCL's latency is that of calls one behind another.
var (
	overNVLink = ways{
		sums: map[Algorithm]way{
			Kernels: {5500 * time.Nanosecond, 280e9}, InPlace: {7500 * time.Nanosecond, 330e9},
			CopyEngines: {28 * time.Microsecond, 250e9}, NCCL: {40 * time.Microsecond, 330e9},
		},
		moves: map[Algorithm]way{
			Kernels:     {5500 * time.Nanosecond, 220e9},
			CopyEngines: {20 * time.Microsecond, 385e9}, NCCL: {40 * time.Microsecond, 330e9},
		},
	}
	overPCIe = ways{
		sums: map[Algorithm]way{
			Kernels: {8 * time.Microsecond, 15e9}, InPlace: {12 * time.Microsecond, 5e9},
			CopyEngines: {30 * time.Microsecond, 22e9}, NCCL: {40 * time.Microsecond, 18e9},
		},
		moves: map[Algorithm]way{
			Kernels:     {8 * time.Microsecond, 15e9},
			CopyEngines: {25 * time.Microsecond, 22e9}, NCCL: {40 * time.Microsecond, 18e9},
		},
	}
)

// expected is what a call of n ranks takes in some way, in seconds, by the formula; size is
// the bytes of the full array.
func (w ways) expected(k transport.Kind, a Algorithm, n, size int) float64 {
	s, others := float64(size), float64(n-1)
	switch share := s * others / float64(n); k {
	case transport.AllReduce:
		return w.sums[a].seconds(2 * share)
	case transport.ReduceScatter:
		return w.sums[a].seconds(share)
	case transport.Reduce: // NCCL's go round, the others all to root
		if a == Kernels {
			s *= others
		}
		return w.sums[a].seconds(s)
	case transport.Broadcast: // by copies and by NCCL, root sends the array once
		if a == Kernels {
			s *= others
		}
		return w.moves[a].seconds(s)
	default:
		return w.moves[a].seconds(share)
	}
}

// gpuPicks is what was chosen by a table.
type gpuPicks struct {
	table *tune.Table
	picks map[gpuSized]pick
}

// gpuSized is what a choice depends on, for a given group.
type gpuSized struct {
	sized
	copies, inPlace bool // can be made so
}

// algorithm chooses who makes the call, and notes it there. All ranks must find the same,
// so it asks for nothing that may differ between them where they call alike.
func (b *byPeers) algorithm(c *call) Algorithm {
	c.algorithm, c.predicted = b.choose(c)
	return c.algorithm
}

func (b *byPeers) choose(c *call) (Algorithm, time.Duration) {
	if pairwise(c) {
		if b.under != nil {
			return b.under.algorithm(c), 0
		}
		return Kernels, 0
	}
	s := gpuSized{sized{c.Kind, fullBytes(c.Header, b.size)}, b.copies(c), b.team.Reaches(theirs(c))}
	if table := b.tuned.table.Load(); b.picks.picks == nil || table != b.picks.table || len(b.picks.picks) == mostPicks {
		b.picks = gpuPicks{table, map[gpuSized]pick{}}
	}
	p, known := b.picks.picks[s]
	if !known {
		p = b.pick(s)
		b.picks.picks[s] = p
	}
	return p.algorithm, p.predicted
}

// pick is the cheapest way that there is, or the one that the options name.
func (b *byPeers) pick(s gpuSized) pick {
	return cheapest(b.waysOf(s), b.algo, func(a Algorithm) float64 {
		return b.costs.expected(s.kind, a, b.size, s.size) * b.tuned.table.Load().Off(onGPUs(s.kind), string(a), s.size)
	})
}

// onGPUs is what tables call collectives on GPU memory.
func onGPUs(k transport.Kind) string { return gpuPrefix + k.String() }

const gpuPrefix = "gpu "

// waysOf lists the ways to make calls that are alike.
func (b *byPeers) waysOf(s gpuSized) []Algorithm {
	list := []Algorithm{Kernels}
	if s.inPlace {
		list = append(list, InPlace)
	}
	if s.copies {
		list = append(list, CopyEngines)
	}
	if b.under != nil {
		list = append(list, NCCL)
	}
	return list
}

// theirs is the call as the team has it.
func theirs(c *call) *dma.Call {
	return &dma.Call{Header: c.Header, To: c.to, From: c.from, SendCounts: c.sendCounts, RecvCounts: c.recvCounts, Peer: c.peer}
}

// pairwise reports whether ranks know only of what they themselves send and get: an
// AllToAllV, a Send or its Recv. Where there is NCCL, it makes them.
func pairwise(c *call) bool { return c.sendCounts != nil || c.Kind == transport.Send }

// copies reports whether the copy engines can make the call.
func (b *byPeers) copies(c *call) bool {
	sums := c.Op == Sum || c.Op == Avg
	switch c.Kind {
	case transport.AllReduce:
		return sums && c.to.Addr() == c.from.Addr() && b.team.Takes(c.to, c.DType)
	case transport.ReduceScatter: // in place
		own := c.from.Addr() + uintptr(b.rank*c.to.Len())
		return sums && c.to.Addr() == own && b.team.Takes(c.from, c.DType) && b.team.Adds(c.to, c.DType)
	case transport.AllGather, transport.Broadcast, transport.AllToAll:
		_, _, ok := b.team.Where(c.to)
		return ok
	}
	return false
}
