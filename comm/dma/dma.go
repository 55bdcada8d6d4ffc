// Package dma is collectives over the GPUs of one host without NCCL: by their copy
// engines, and by kernels that write to each other's memory.
//
// Every rank of a Team has memory that the others can write: what Alloc gives, and the
// Team's own. All GPUs reach each other's, through CUDA's IPC between processes, and Join
// has seen that what one writes the other reads.
//
// Copy engines (AllReduce, ReduceScatter, AllGather, Broadcast, AllToAll) are for large
// arrays. While a copy is under way it occupies no multiprocessor, so that a computation
// beside it keeps the whole GPU; only the addition itself, a pass over the sums, is a
// kernel. An AllReduce cuts an array into as many parts as there are ranks, and in two
// steps
//
//	each rank sends part p of its array to rank p, which adds up what it gets
//	each rank sends the part that it has added up to all others
//
// so (W-1)/W of the array crosses each link twice, as in a ring. ReduceScatter is the
// first of the two steps, AllGather the second. Streams of different GPUs order each
// other by counters: a rank writes the number of the call to a word of its peer's memory
// behind a copy, and the peer's stream waits for that word. No host takes part.
//
// Kernels (Exchange) are for what is small, and for what copy engines do not take:
// exchange.cu tells how they go. Others (Direct) make large sums of all ranks' arrays where
// they lie in memory from Alloc, which over NVLink is faster than copies: see direct.cu.
//
// All sums are formed in the order of the ranks, 16-bit floats in f32, and rounded once:
// all ranks have the same bits.
package dma

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// MaxRanks bounds a team: sum.cu takes so many arrays.
const MaxRanks = 8

// Exchange gives every rank what all ranks bring, in the order of the ranks. key
// tells the exchanges of a team apart.
type Exchange func(ctx context.Context, key string, mine []byte) ([][]byte, error)

// Team is the GPUs of one host's ranks. Its calls must be made in one order on all
// ranks, by one goroutine at a time.
type Team struct {
	d        *cuda.Device
	me, size int
	exchange Exchange
	machine  machine
	limits   limits
	most     int      // blocks of a kernel, the same on all ranks
	mostBig  int      // the same, where a kernel moves large arrays
	linked   bool     // all ranks' GPUs are joined by NVLink
	cards    []string // the ranks' GPUs, by their UUIDs

	sumModule, exchangeModule, pairsModule *cuda.Module

	sums    map[dtype.DType]*cuda.Function // of sum.cu
	kernels map[string]*cuda.Function      // of exchange.cu, direct.cu and pairs.cu

	rescue *cuda.Stream  // on which Abort works
	words  device.Buffer // of the host, which kernels reach

	flags   shared // of copies: a line for each peer and step, and one for passed
	scratch shared // of copies: SlotBytes for each rank, what it has sent
	box     shared // of kernels: see inbox
	pairBox shared // the same: see pairbox
	allocs  int

	enqueuing sync.Mutex    // held while a call is enqueued; guards what follows
	seq       uint32        // rounds of copies so far
	calls     uint32        // kernels of exchange.cu and direct.cu so far
	blocks    [kinds]uint32 // of all kernels so far
	latest    Mark
	args      exchangeArgs
	direct    directArgs
	moving    moves

	pairCalls uint32 // kernels of pairs.cu so far
	pairArgs  pairsArgs

	mu      sync.Mutex // guards what follows
	regions []shared
	aborted error
}

// shared is a piece of memory that every rank has one of, as this rank sees them.
type shared struct {
	own   device.Buffer
	ranks []device.Buffer // the own one among them
	maps  []mapping       // of peers
}

// Alloc gives n zeroed bytes that every call takes. All ranks call it with the same n;
// the memory lives until Close.
func (t *Team) Alloc(ctx context.Context, n int) (device.Buffer, error) {
	t.allocs++
	r, err := t.share(ctx, fmt.Sprintf("alloc/%d", t.allocs), n)
	if err != nil {
		return device.Buffer{}, fmt.Errorf("copy engines: %w", err)
	}
	t.mu.Lock()
	t.regions = append(t.regions, r) // while other goroutines ask where memory lies
	t.mu.Unlock()
	return r.own, nil
}

// Practice lends memory that every call takes, as Alloc's, until done: the team's own for
// sums by copies. Calls on it move as many bytes as others do, and leave anything there. All
// ranks borrow it at the same place among their calls of Alloc, one at a time.
func (t *Team) Practice() (b device.Buffer, done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.regions = append(t.regions, t.scratch)
	return t.scratch.own, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.regions = t.regions[:len(t.regions)-1]
	}
}

// NVLinked reports whether NVLink joins the GPUs of all ranks, as far as each of them sees
// the others'.
func (t *Team) NVLinked() bool { return t.linked }

// Where tells in which memory b lies, that of the first Alloc being 1, and at which
// byte of it. ok is false where b is not memory of the team. It may be called from any
// goroutine.
func (t *Team) Where(b device.Buffer) (alloc, offset int, ok bool) {
	_, alloc, offset, ok = t.find(b)
	return alloc, offset, ok
}

func (t *Team) find(b device.Buffer) (r shared, alloc, offset int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range t.regions {
		if b.Addr() >= r.own.Addr() && b.Addr()+uintptr(b.Len()) <= r.own.Addr()+uintptr(r.own.Len()) {
			return r, i, int(b.Addr() - r.own.Addr()), true // 0 is what the first sum was made in
		}
	}
	return shared{}, 0, 0, false
}

// Takes reports whether AllReduce takes b with elements of dt. It may be called from
// any goroutine.
func (t *Team) Takes(b device.Buffer, dt dtype.DType) bool {
	_, _, ok := t.Where(b)
	return ok && t.sums[dt] != nil && b.Addr()%16 == 0
}

// Adds reports whether ReduceScatter takes b with elements of dt, as dst or src. It may
// be called from any goroutine.
func (t *Team) Adds(b device.Buffer, dt dtype.DType) bool {
	return t.sums[dt] != nil && b.Addr()%16 == 0 && b.Len()%16 == 0
}

// Close releases everything. No call is under way on this rank. Memory is freed when
// no peer has it open any more; a peer that does not close too is waited for, but not
// for long.
func (t *Team) Close() error {
	if err := t.failure(); err != nil {
		if err := t.Abort(err, abortWithin); err != nil {
			return fmt.Errorf("%w: the team's memory is not released, which would wait for them", err)
		}
	}
	var errs []error
	if t.rescue != nil {
		errs = append(errs, t.rescue.Close())
	}
	if t.words.Len() > 0 {
		errs = append(errs, t.d.Free(t.words))
	}
	all := append([]shared{t.flags, t.scratch, t.box, t.pairBox}, t.regions...)
	for _, s := range all {
		errs = append(errs, t.unmap(s))
	}
	t.part()
	for _, s := range all {
		if s.own.Len() > 0 {
			errs = append(errs, t.d.Free(s.own))
		}
	}
	here.Delete(t.key())
	t.flags, t.scratch, t.box, t.pairBox, t.regions, t.words = shared{}, shared{}, shared{}, shared{}, nil, device.Buffer{}
	for _, m := range []**cuda.Module{&t.sumModule, &t.exchangeModule, &t.pairsModule} {
		if *m != nil {
			errs = append(errs, (*m).Unload())
			*m = nil
		}
	}
	return errors.Join(errs...)
}
