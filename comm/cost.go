package comm

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// Algorithm is a way to carry out a collective.
type Algorithm string

const (
	Auto     Algorithm = ""         // the cheapest by the cost model
	OneShot  Algorithm = "oneshot"  // everybody sends everything to everybody
	Direct   Algorithm = "direct"   // parts go straight to their owner, and back from there
	Ring     Algorithm = "ring"     // parts go round, summed on the way
	Doubling Algorithm = "doubling" // partners at distance 1, 2, 4, ... exchange sums
	Tree     Algorithm = "tree"     // binomial
	Chain    Algorithm = "chain"    // from rank to rank, in chunks
	TwoLevel Algorithm = "twolevel" // within hosts, then between them
	Shared   Algorithm = "shm"      // through the host's shared memory

	// Of memory of GPUs, within a host: see comm/dma.
	Kernels     Algorithm = "kernels"      // write to other GPUs' memory that is kept for it
	InPlace     Algorithm = Direct         // kernels read and write other GPUs' arrays where they are
	CopyEngines Algorithm = "copy-engines" // make sums and gathers
	NCCL        Algorithm = "nccl"         // chooses by itself
	Copy        Algorithm = "copy"         // of one rank; no option
)

// ParseAlgorithm reads an option: "auto" or one of the names above.
func ParseAlgorithm(s string) (Algorithm, error) {
	all := []Algorithm{OneShot, Direct, Ring, Doubling, Tree, Chain, TwoLevel, Shared, Kernels, CopyEngines, NCCL}
	if s == "auto" || s == "" {
		return Auto, nil
	}
	if slices.Contains(all, Algorithm(s)) {
		return Algorithm(s), nil
	}
	return Auto, fmt.Errorf("unknown algorithm %q: want auto or one of %v", s, all)
}

// cost is a model of links: a message of b bytes takes latency + b/bandwidth, and
// keeps the processor busy for overhead.
type cost struct {
	latency, overhead time.Duration
	bandwidth         float64 // bytes per second of one rank, each direction
}

// foldRate is the bytes of sources that a rank sums per second.
const foldRate = 10e9

// Typical figures, which a measurement corrects (see Group.tune). All ranks of a group
// must use the same. Ranks of one host share its cores, so that over loopback the
// overhead of messages counts for more than their latency.
var (
	costLocal    = cost{latency: 2 * time.Microsecond, overhead: time.Microsecond, bandwidth: 8e9}
	costLoopback = cost{latency: 12 * time.Microsecond, overhead: 30 * time.Microsecond, bandwidth: 2e9}
	costNetwork  = cost{latency: 60 * time.Microsecond, overhead: 8 * time.Microsecond, bandwidth: 1.2e9}
)

// candidates are the algorithms that a collective has over links. The first is
// taken where an option names one that it does not have.
func candidates(k transport.Kind) []Algorithm {
	switch k {
	case transport.AllReduce:
		return []Algorithm{OneShot, Doubling, Direct, Ring}
	case transport.ReduceScatter, transport.AllGather:
		return []Algorithm{Direct, Ring}
	case transport.Broadcast:
		return []Algorithm{Tree, Chain}
	case transport.Barrier, transport.Alloc:
		return []Algorithm{Doubling}
	}
	return []Algorithm{Direct}
}

// seconds estimates a collective over n ranks; size is the bytes of the full array.
func (m cost) seconds(k transport.Kind, a Algorithm, n, size, chunk int) float64 {
	var messages, steps int
	var moved, folded float64 // bytes that a rank sends; sums while nothing travels
	s, share := float64(size), float64(size)/float64(n)
	rounds := bits.Len(uint(n - 1))
	halves := 1
	if k == transport.AllReduce {
		halves = 2 // scatter the sums, gather them
	}
	switch a {
	case OneShot:
		messages, steps, moved, folded = n-1, 1, s*float64(n-1), s*float64(n)
		if n*size > scratchLimit {
			return math.Inf(1)
		}
	case Doubling:
		steps = rounds
		if n&(n-1) != 0 { // of the power of two below, and two more
			steps++
		}
		messages, moved, folded = steps, s*float64(steps), s*float64(2*steps)
	case Direct:
		// Many flows into one rank share its link badly; a ring has one.
		crowd := 1 + float64((n-2)*(n-2))/1000
		messages, steps, moved = halves*(n-1), halves, float64(halves*(n-1))*share*crowd
		folded = min(share, float64(chunk)) * float64(n)
	case Ring:
		steps = halves * (n - 1)
		messages, moved, folded = steps*depth, float64(steps)*share, min(share, float64(chunk))*float64(n)
	case Tree:
		messages, steps, moved = rounds, rounds, s*float64(rounds)
	case Chain:
		fill := min(float64(chunk), s) * float64(n-2)
		messages, steps, moved = 1, n-1, s+fill
	}
	messages += int(moved) / chunk
	return float64(steps)*m.latency.Seconds() + float64(messages)*m.overhead.Seconds() + moved/m.bandwidth + folded/foldRate
}

// fullBytes is the size of a call's full array over n ranks.
func fullBytes(h transport.Header, n int) int {
	size := int(h.Count) * h.DType.Size()
	switch h.Kind {
	case transport.ReduceScatter, transport.AllGather, transport.Gather, transport.Scatter, transport.AllToAll:
		size *= n
	}
	return size
}
