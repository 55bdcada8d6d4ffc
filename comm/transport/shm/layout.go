package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
)

// The control segment is the memory that all ranks of a team share from the
// start:
//
//	record   the first failure, see fail.go
//	lines    ranks × lines of lineBytes, each written by its rank alone
//	small    ranks × 2 buffers of smallBytes, for one-shot
//	slots    ranks × ranks × depth chunks, for mailbox and spread
//	pairs    ranks × ranks × 2 lines: what one rank posted for another, and what that took
//	letters  ranks × ranks × pairDepth × (header, pairChunk), for messages between two ranks
//
// A rank never waits for more memory than its own: all numbers that flags hold
// only grow, and wrap, so they are compared by difference.
const (
	maxRanks    = 64
	pageBytes   = 4096
	recordBytes = pageBytes
	lineBytes   = 128 // two cache lines: the processor prefetches pairs
	smallBytes  = 4 << 10
	depth       = 4 // chunks under way between two ranks: at least 3, and a power of two because chunk numbers wrap
	pairDepth   = 4
	letterHead  = 64 // the header of a message, before each of its chunks
)

// line is a place of a rank's own. The first word of those that are flags is the
// flag, the second counts who sleeps on it.
type line int

const (
	entered0 line = iota // flag: the even calls entered, with the call's header and places
	entered1             // flag: the odd ones
	done                 // flag: calls after which this rank touches no other's buffer
	posted               // flag: chunks put into slots
	taken                // flag: chunks of others that were used, and may be overwritten
	state                // joined, left, process, verdicts: see the offsets below
	cores                // a unix.CPUSet: the processors that the rank may run on
	linesPerRank
)

var _ [lineBytes - unsafe.Sizeof(unix.CPUSet{})]byte // cores fits into a line

// flagLines are the lines that ranks sleep on.
var flagLines = [...]line{entered0, entered1, done, posted, taken}

// Offsets within lines.
const (
	headerOff  = 8  // entered: transport.Header
	placesOff  = 40 // entered: where source and destination lie, two words
	joinedOff  = 0  // state: not zero once the rank holds its lock
	leftOff    = 4  // state: not zero once the rank closes the team
	processOff = 8  // state: a random number of the process
	verdictOff = 16 // state: two words, see Alloc
)

// layout computes where things lie in the control segment.
type layout struct {
	ranks     int
	chunk     int // bytes of a slot
	pairChunk int // bytes of a letter
}

// newLayout keeps slots small where they are many, so that those of a rank fit
// into a cache, and large where they are few.
func newLayout(ranks int) layout {
	chunk := min(256<<10, 1<<20/ranks) &^ (pageBytes - 1)
	return layout{ranks: ranks, chunk: chunk, pairChunk: chunk / 4}
}

func (l layout) lineOff(rank int, k line) int {
	return recordBytes + (rank*int(linesPerRank)+int(k))*lineBytes
}

func (l layout) smallOff(rank, parity int) int {
	return align(l.lineOff(l.ranks, 0), pageBytes) + (rank*2+parity)*smallBytes
}

// slotOff is the slot from one rank to another for the k-th chunk ever.
func (l layout) slotOff(from, to int, k uint32) int {
	return l.smallOff(l.ranks, 0) + ((from*l.ranks+to)*depth+int(k%depth))*l.chunk
}

// pairOff is the line of the messages from one rank to another: side 0 counts the
// letters posted, side 1 those taken.
func (l layout) pairOff(from, to, side int) int {
	return l.slotOff(l.ranks, 0, 0) + ((from*l.ranks+to)*2+side)*lineBytes
}

func (l layout) letterOff(from, to int, k uint32) int {
	return align(l.pairOff(l.ranks, 0, 0), pageBytes) + ((from*l.ranks+to)*pairDepth+int(k%pairDepth))*(letterHead+l.pairChunk)
}

func (l layout) size() int { return align(l.letterOff(l.ranks, 0, 0), pageBytes) }

func align(n, to int) int { return (n + to - 1) / to * to }

// control is the mapped control segment.
type control struct {
	layout
	mem []byte
}

func (c *control) word(off int) *uint32   { return (*uint32)(unsafe.Pointer(&c.mem[off])) }
func (c *control) word64(off int) *uint64 { return (*uint64)(unsafe.Pointer(&c.mem[off])) }

func (c *control) flag(rank int, k line) *uint32 { return c.word(c.lineOff(rank, k)) }

// entered is the flag of the call with number op.
func (c *control) entered(rank int, op uint32) *uint32 {
	return c.flag(rank, entered0+line(op&1))
}

// lastEntered is the number of the latest call that rank entered.
func (c *control) lastEntered(rank int) uint32 {
	a, b := atomic.LoadUint32(c.flag(rank, entered0)), atomic.LoadUint32(c.flag(rank, entered1))
	if before(a, b) {
		return b
	}
	return a
}

// mayRunOn is where rank says which processors it may run on.
func (c *control) mayRunOn(rank int) *unix.CPUSet {
	return (*unix.CPUSet)(unsafe.Pointer(&c.mem[c.lineOff(rank, cores)]))
}

// call is where rank publishes the header and the places of call op.
func (c *control) call(rank int, op uint32) []byte {
	off := c.lineOff(rank, entered0+line(op&1))
	return c.mem[off+headerOff : off+placesOff+16]
}

func (c *control) small(rank int, op uint32, n int) []byte {
	off := c.smallOff(rank, int(op&1))
	return c.mem[off : off+n : off+n]
}

func (c *control) slot(from, to int, k uint32, n int) []byte {
	off := c.slotOff(from, to, k)
	return c.mem[off : off+n : off+n]
}

func (c *control) letter(from, to int, k uint32) (head, body []byte) {
	off := c.letterOff(from, to, k)
	return c.mem[off : off+transport.HeaderSize], c.mem[off+letterHead : off+letterHead+c.pairChunk]
}

// before compares numbers that wrap.
func before(a, b uint32) bool { return int32(a-b) < 0 }
