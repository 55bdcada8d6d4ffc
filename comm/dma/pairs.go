package dma

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// As in pairs.cu.
const (
	channels = 8
	depth    = 4
	pairRoom = 64 << 10 // of a slot, bytes
)

// pairbox is a rank's memory for what moves between pairs, in bytes:
//
//	come, gone, sent, taken  [MaxRanks][channels] counters each
//	slots                    [ranks senders][channels][depth] of pairRoom
type pairbox struct{ ranks int }

const counters = MaxRanks * channels * flagBytes

func (p pairbox) come() int  { return 0 }
func (p pairbox) gone() int  { return counters }
func (p pairbox) sent() int  { return 2 * counters }
func (p pairbox) taken() int { return 3 * counters }
func (p pairbox) slots() int { return 4 * counters }
func (p pairbox) bytes() int { return p.slots() + p.ranks*channels*depth*pairRoom }

// pairsArgs is Pairs of pairs.cu.
type pairsArgs struct {
	src, dst            uintptr
	slots, come, gone   [MaxRanks]uintptr
	sent, taken         uintptr
	sendAt, sends       [MaxRanks]int64
	recvAt, recvs       [MaxRanks]int64
	room                int64
	watch               watch
	me, ranks, lanes, _ int32
}

// pair reports whether the call moves parts of different sizes between pairs of ranks.
func (c *Call) pair() bool { return c.Kind == transport.Send || c.SendCounts != nil }

// pairs carries out AllToAllV, Send and Recv.
func (t *Team) pairs(s *cuda.Stream, c *Call) error {
	if err := t.going(s); err != nil {
		return err
	}
	box, own := pairbox{t.size}, t.pairBox.own.Addr()
	t.pairCalls++
	lanes := min(channels, max(t.most/2, 1))
	grid := cuda.Grid{Blocks: cuda.Dim{X: 2 * lanes}, Threads: cuda.Dim{X: flaggedThreads}}
	a := &t.pairArgs
	*a = pairsArgs{
		src: c.From.Addr(), dst: c.To.Addr(),
		sent: own + uintptr(box.sent()), taken: own + uintptr(box.taken()),
		room:  pairRoom,
		watch: t.watch(betweenPairs, t.pairCalls, grid.Blocks.X),
		me:    int32(t.me), ranks: int32(t.size), lanes: int32(lanes),
	}
	for r, b := range t.pairBox.ranks {
		a.slots[r], a.come[r], a.gone[r] = b.Addr()+uintptr(box.slots()), b.Addr()+uintptr(box.come()), b.Addr()+uintptr(box.gone())
	}
	switch {
	case c.Kind != transport.Send:
		var from, to int64
		for p := range t.size {
			a.sendAt[p], a.sends[p] = from, int64(c.SendCounts[p]*c.DType.Size())
			a.recvAt[p], a.recvs[p] = to, int64(c.RecvCounts[p]*c.DType.Size())
			from, to = from+a.sends[p], to+a.recvs[p]
		}
	case c.Peer == int(c.Root):
		a.sends[c.Peer] = int64(c.From.Len())
	default:
		a.recvs[c.Peer] = int64(c.To.Len())
	}
	t.machine.launch(s, t.kernels["pairs"], grid, a)
	return s.Err()
}
