package dma

import (
	"slices"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Way is how a kernel's data travels.
type Way string

const (
	Marked  Way = "marked"   // each 8 bytes carry the call's number: one way over the link
	Flagged Way = "flagged"  // packs, then a flag
	TwoShot Way = "two-shot" // flagged: parts are summed, sums are sent
)

// limits are the bytes that a rank sends to each other up to which a way is taken.
type limits struct {
	marked  int
	oneShot int // of an AllReduce of gradients: its sum is made on every rank, not in two steps
}

// limitsOf is the limits by the number of ranks: measured for two that NVLink joins,
// estimates for more.
var limitsOf = [MaxRanks + 1]limits{
	2: {64 << 10, 2 << 20},
	3: {32 << 10, 256 << 10},
	4: {32 << 10, 256 << 10},
	5: {16 << 10, 128 << 10},
	6: {16 << 10, 128 << 10},
	7: {16 << 10, 64 << 10},
	8: {16 << 10, 64 << 10},
}

// way is how n bytes from each rank to each other travel. For an AllReduce that is the
// array.
func (t *Team) way(k transport.Kind, dt dtype.DType, n int) Way {
	switch {
	case n <= t.limits.marked:
		return Marked
	case k == transport.AllReduce && n > t.limits.oneShot && slices.Contains(gradients, dt):
		return TwoShot
	}
	return Flagged
}

// Threads of a block. A marked pack is one thread's, so that all are under way at once;
// flagged ones want many bytes in flight on few multiprocessors.
const (
	markedThreads  = 256
	flaggedThreads = 512
	// usualBlocks is the most blocks, and half of the multiprocessors is: what runs beside a
	// call keeps the others. Parts of bigFrom bytes and more may take all, which saves a
	// twentieth of their time.
	usualBlocks = 64
	bigFrom     = 128 << 20
)

// grid is the same on all ranks: blocks wait for their like.
func (t *Team) grid(w Way, n int) cuda.Grid {
	packs, threads := (n+15)/16, flaggedThreads
	switch w {
	case Marked:
		threads = markedThreads
	case TwoShot:
		packs = (packs + t.size - 1) / t.size
	}
	most := t.most
	if n >= bigFrom {
		most = t.mostBig
	}
	blocks := min(max((packs+threads-1)/threads, 1), most)
	return cuda.Grid{Blocks: cuda.Dim{X: blocks}, Threads: cuda.Dim{X: threads}}
}
