package dma

import (
	_ "embed"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

//go:embed sum.cu
var text string

const (
	// SlotBytes is the room for a part that a peer sends: a Team has one for each of its
	// ranks. Longer arrays go in rounds.
	SlotBytes = 32 << 20
	// lineBytes keeps the counters of different writers apart.
	lineBytes = 128
	// align is where parts begin: what the copy engines and the kernel like.
	align = 256
	// blocks of the kernel: enough for most of the memory's speed, few enough to
	// leave the multiprocessors to the computation beside it.
	blocks, threads = 64, 512
)

// AllReduce replaces b, memory that Alloc gave, with the sum over all ranks' b; with
// avg with the mean. All ranks give the same place, which nobody checks: the same
// offset and length in memory of the same Alloc. It enqueues on s and returns.
func (t *Team) AllReduce(s *cuda.Stream, b device.Buffer, dt dtype.DType, avg bool) error {
	region, _, offset, ok := t.find(b)
	switch {
	case !ok:
		return fmt.Errorf("copy engines: %d bytes at %#x are not memory of the team", b.Len(), b.Addr())
	case !t.Takes(b, dt):
		return fmt.Errorf("copy engines: no sums of %s at %#x: want f32, bf16 or f16, aligned to 16 bytes", dt, b.Addr())
	}
	for at := 0; at < b.Len(); at += t.size * SlotBytes {
		t.mu.Lock()
		err := t.aborted
		if err == nil {
			err = s.Err()
		}
		if err == nil {
			t.round(s, region, offset+at, min(t.size*SlotBytes, b.Len()-at), dt, avg)
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return s.Err()
}

// The two steps of a round, by their counters.
const (
	sent  = iota // a peer's part has come
	added        // a peer's sums have come, so it is done with all that it was sent
)

// round sums n bytes, at most SlotBytes a rank. Waiting for all peers' sums at its
// end makes it safe to overwrite their slots, and the array, in the next.
func (t *Team) round(s *cuda.Stream, r shared, at, n int, dt dtype.DType, avg bool) {
	t.seq++
	unit := t.size * align
	part := (n + unit - 1) / unit * align // at most SlotBytes
	cut := func(b device.Buffer, rank int) device.Buffer {
		return b.Slice(at+min(rank*part, n), at+min((rank+1)*part, n))
	}
	for i := 1; i < t.size; i++ {
		p := (t.me + i) % t.size // all ranks begin with another peer
		mine := cut(r.own, p)
		s.Copy(t.slot(p, t.me, mine.Len()), mine)
		s.WriteValue32(t.word(p, t.me, sent), t.seq)
	}
	for i := 1; i < t.size; i++ {
		s.WaitValue32(t.word(t.me, (t.me+i)%t.size, sent), t.seq)
	}
	t.add(s, cut(r.own, t.me), dt, avg)
	for i := 1; i < t.size; i++ {
		p := (t.me + i) % t.size
		s.Copy(cut(r.ranks[p], t.me), cut(r.own, t.me))
		s.WriteValue32(t.word(p, t.me, added), t.seq)
	}
	for i := 1; i < t.size; i++ {
		s.WaitValue32(t.word(t.me, (t.me+i)%t.size, added), t.seq)
	}
	s.WriteValue32(t.passed().Addr(), t.seq)
}

// sumArgs is the kernel's parameter, as in sum.cu.
type sumArgs struct {
	dst    uintptr
	src    [MaxRanks]uintptr // in the order of the ranks
	n      int64
	ranks  int32
	factor float32
}

// add replaces own, this rank's part, with the sum of it and of what the peers sent.
func (t *Team) add(s *cuda.Stream, own device.Buffer, dt dtype.DType, avg bool) {
	if own.Len() == 0 {
		return
	}
	a := sumArgs{dst: own.Addr(), n: int64(own.Len() / dt.Size()), ranks: int32(t.size), factor: 1}
	if avg {
		a.factor = 1 / float32(t.size)
	}
	for p := range t.size {
		a.src[p] = t.slot(t.me, p, 0).Addr()
	}
	a.src[t.me] = own.Addr()
	cuda.Launch(s, t.sums[dt], cuda.Grid{Blocks: cuda.Dim{X: blocks}, Threads: cuda.Dim{X: threads}}, &a)
}

// slot is where rank keeps what from sends it.
func (t *Team) slot(rank, from, n int) device.Buffer {
	at := from * SlotBytes
	if n == 0 { // an empty slice has no address
		return device.At(t.scratch.ranks[rank].Addr()+uintptr(at), 0)
	}
	return t.scratch.ranks[rank].Slice(at, at+n)
}

// word is the address of the counter in rank's memory that from writes.
func (t *Team) word(rank, from, step int) uintptr {
	return t.flags.ranks[rank].Addr() + uintptr((2*from+step)*lineBytes)
}
