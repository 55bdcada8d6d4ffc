package dma

import (
	_ "embed"
	"sync/atomic"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

var (
	//go:embed peer.cuh
	peerText string
	//go:embed elements.cuh
	elementsText string
	//go:embed watch.cuh
	watchText string
	//go:embed exchange.cu
	exchangeOnly string
	//go:embed direct.cu
	directOnly string
	//go:embed pairs.cu
	pairsOnly string
)

// What the compiler is given: it takes no file to include but the first.
var (
	common       = "#include \"floats.cuh\"\n" + peerText + elementsText + watchText
	exchangeText = common + exchangeOnly + directOnly
	pairsText    = common + pairsOnly
)

// As in exchange.cu.
const (
	maxBlocks  = 128
	markedRoom = 128 << 10 // of a rank's marked packs for another
	markedMost = markedRoom / 2
	flagBytes  = 4
)

// inbox is a rank's memory for what others send it, in bytes:
//
//	flags  [2 steps][MaxRanks senders][maxBlocks]
//	ended  two words: the blocks that have ended of the rank's own kernels, those of pairs.cu apart
//	lines  [2 halves][ranks senders] of markedRoom
//	slots  [2 halves][2 steps][ranks senders] of room
type inbox struct{ ranks int }

// slotsTogether is the bytes of the slots of one step and half, whatever the number of
// ranks.
const slotsTogether = 8 << 20

func (i inbox) room() int  { return slotsTogether / i.ranks &^ 255 }
func (i inbox) ended() int { return 2 * MaxRanks * maxBlocks * flagBytes }
func (i inbox) lines() int { return i.ended() + lineBytes }
func (i inbox) slots() int { return i.lines() + 2*i.ranks*markedRoom }
func (i inbox) bytes() int { return i.slots() + 4*i.ranks*i.room() }

// half is where the lines and slots of a call begin.
func (i inbox) half(call uint32) (lines, slots int) {
	h := int(call % 2)
	return i.lines() + h*i.ranks*markedRoom, i.slots() + h*2*i.ranks*i.room()
}

// watch is Watch of watch.cuh.
type watch struct {
	stop, behind, ended, stamps uintptr
	call, last                  uint32
}

// exchangeArgs is Exchange of exchange.cu.
type exchangeArgs struct {
	src, dst            uintptr
	lines, slots, flags [MaxRanks]uintptr
	sendAt, sends       [MaxRanks]int64
	recvAt, recvs       [MaxRanks]int64
	room                int64
	watch               watch
	me, ranks, op, _    int32
}

// gradients is the types that large sums are made of, which have kernels and copies of
// their own.
var gradients = []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}

// kernelNames is the kernels of exchange.cu and direct.cu.
func kernelNames() []string {
	names := []string{"move_marked", "move_flagged"}
	for _, dt := range dtype.All {
		names = append(names, "sum_marked_"+dt.String(), "sum_flagged_"+dt.String())
	}
	for _, dt := range gradients {
		names = append(names, "two_shot_"+dt.String(), "direct_"+dt.String())
	}
	return names
}

// load loads all kernels.
func (t *Team) load() error {
	var err error
	if t.sumModule, err = t.machine.module(t.d, "dma sum.cu", text); err != nil {
		return err
	}
	for _, dt := range gradients {
		if t.sums[dt], err = t.sumModule.Function("sum_" + dt.String()); err != nil {
			return err
		}
	}
	if t.exchangeModule, err = t.machine.module(t.d, "dma exchange.cu", exchangeText); err != nil {
		return err
	}
	for _, name := range kernelNames() {
		if t.kernels[name], err = t.exchangeModule.Function(name); err != nil {
			return err
		}
	}
	if t.pairsModule, err = t.machine.module(t.d, "dma pairs.cu", pairsText); err != nil {
		return err
	}
	t.kernels["pairs"], err = t.pairsModule.Function("pairs")
	return err
}

// Memory is the bytes of GPU memory that a team of so many ranks takes for itself, on
// each rank.
func Memory(ranks int) int {
	return inbox{ranks}.bytes() + pairbox{ranks}.bytes() + ranks*SlotBytes + (2*ranks+1)*lineBytes + 4*helloCount
}

// words is what a team has in host memory that its GPU reaches.
//
//	seen      [2] u32: what Abort reads
//	stop      u32: not zero once kernels have to end
//	behind    u64: the call and, one higher, the rank that a kernel waited for last
//	counters  [2*MaxRanks] u32: what Awaited reads
//	stamps    [2][stamps] u64: when calls began and ended, see Mark
const (
	seenAt, stopAt, behindAt, countersAt, stampsAt = 0, 64, 128, 192, 256

	wordsBytes = stampsAt + 2*stamps*stampBytes
)

// launch enqueues a kernel of the exchange's. m is what it moves.
func (t *Team) launch(s *cuda.Stream, kernel string, m *moves, op int32) {
	box := inbox{t.size}
	t.calls++
	lines, slots := box.half(t.calls)
	a := &t.args
	*a = exchangeArgs{
		src: m.src.Addr(), dst: m.dst.Addr(),
		sendAt: m.sendAt, sends: m.sends, recvAt: m.recvAt, recvs: m.recvs,
		room:  int64(box.room()),
		watch: t.stamped(m.grid.Blocks.X),
		me:    int32(t.me), ranks: int32(t.size), op: op,
	}
	for r, b := range t.box.ranks {
		a.lines[r], a.slots[r], a.flags[r] = b.Addr()+uintptr(lines), b.Addr()+uintptr(slots), b.Addr()
	}
	t.machine.launch(s, t.kernels[kernel], m.grid, a)
}

// The kinds of kernels, whose blocks are counted apart: those of a kind follow each other,
// but for those of pairs.cu.
const (
	collectives = iota
	betweenPairs
	kinds
)

// watch is what a kernel of the given kind, number and blocks looks at and leaves.
func (t *Team) watch(kind int, call uint32, blocks int) watch {
	atomic.StoreUint64(t.behind(), 0) // of kernels before
	t.blocks[kind] += uint32(blocks)
	return watch{
		stop: t.words.Addr() + stopAt, behind: t.words.Addr() + behindAt,
		ended: t.ended().Addr() + uintptr(kind*flagBytes), call: call, last: t.blocks[kind],
	}
}

// stamped is watch of the latest collective, which also says when it begins and ends.
func (t *Team) stamped(blocks int) watch {
	w := t.watch(collectives, t.calls, blocks)
	w.stamps = t.words.Addr() + stampsAt + uintptr(t.calls%stamps*stampBytes)
	return w
}

// ended counts the blocks that have ended, of each kind of kernels.
func (t *Team) ended() device.Buffer {
	at := inbox{t.size}.ended()
	return t.box.own.Slice(at, at+kinds*flagBytes)
}
