package dma

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	// SlotBytes is the room for a part that a peer sends: a Team has one for each of its
	// ranks. Longer arrays go in rounds.
	SlotBytes = 32 << 20
	// lineBytes keeps the counters of different writers apart.
	lineBytes = 128
	// align is where the parts of an AllReduce begin: what the copy engines and the
	// kernel like.
	align = 256
)

// The two steps of a round, by their counters.
const (
	sent  = iota // a peer's part has come; where no part comes first: this rank's may be sent
	added        // a peer is done with all that it was sent, and what it sends last has come
)

// AllReduce replaces b, memory that Alloc gave, with the sum over all ranks' b; with
// avg with the mean. All ranks give the same place, which nobody checks: the same
// offset and length in memory of the same Alloc. It enqueues on s and returns.
func (t *Team) AllReduce(s *cuda.Stream, b device.Buffer, dt dtype.DType, avg bool) error {
	region, _, offset, ok := t.find(b)
	if !ok {
		return t.strange(b)
	}
	if !t.Takes(b, dt) {
		return fmt.Errorf("copy engines: no sums of %s at %#x: want f32, bf16 or f16, aligned to 16 bytes", dt, b.Addr())
	}
	for at := 0; at < b.Len(); at += t.size * SlotBytes {
		n := min(t.size*SlotBytes, b.Len()-at)
		unit := t.size * align
		part := (n + unit - 1) / unit * align // at most SlotBytes
		cut := func(b device.Buffer, rank int) device.Buffer {
			return b.Slice(offset+at+min(rank*part, n), offset+at+min((rank+1)*part, n))
		}
		mine := cut(region.own, t.me)
		if err := t.round(s, func() {
			t.deal(s, func(p int) device.Buffer { return cut(region.own, p) })
			t.add(s, mine, mine, dt, avg)
			for p := range t.peers() {
				s.Copy(cut(region.ranks[p], t.me), mine)
				t.tell(s, p, added)
			}
		}); err != nil {
			return err
		}
	}
	return s.Err()
}

// ReduceScatter writes to dst [n] the sum, or with avg the mean, over all ranks' part
// of src [size*n] that belongs to this rank. dst may be this rank's own part of src.
// Both are any memory of the GPU, aligned to 16 bytes, and so is n. It enqueues on s
// and returns.
func (t *Team) ReduceScatter(s *cuda.Stream, dst, src device.Buffer, dt dtype.DType, avg bool) error {
	n := dst.Len()
	if src.Len() != t.size*n {
		return fmt.Errorf("copy engines: %d bytes to scatter over %d ranks, and room for %d", src.Len(), t.size, n)
	}
	if !t.Adds(dst, dt) || !t.Adds(src, dt) {
		return fmt.Errorf("copy engines: no sums of %d bytes of %s from %#x to %#x: want f32, bf16 or f16, aligned to 16 bytes", n, dt, src.Addr(), dst.Addr())
	}
	for at := 0; at < n; at += SlotBytes {
		end := min(at+SlotBytes, n)
		part := func(p int) device.Buffer { return src.Slice(p*n+at, p*n+end) }
		if err := t.round(s, func() {
			t.deal(s, part)
			t.add(s, dst.Slice(at, end), part(t.me), dt, avg)
			for p := range t.peers() {
				t.tell(s, p, added)
			}
		}); err != nil {
			return err
		}
	}
	return s.Err()
}

// AllGather writes to dst [size*n], memory that Alloc gave, all ranks' src [n] in the
// order of the ranks. src may be this rank's own part of dst. All ranks give the same
// place for dst, which nobody checks. It enqueues on s and returns.
func (t *Team) AllGather(s *cuda.Stream, dst, src device.Buffer) error {
	region, _, offset, ok := t.find(dst)
	if !ok {
		return t.strange(dst)
	}
	n := src.Len()
	if dst.Len() != t.size*n {
		return fmt.Errorf("copy engines: %d bytes from each of %d ranks, and room for %d", n, t.size, dst.Len())
	}
	if n == 0 {
		return s.Err()
	}
	place := func(b device.Buffer) device.Buffer { return b.Slice(offset+t.me*n, offset+(t.me+1)*n) }
	return t.round(s, func() {
		for p := range t.peers() {
			t.tell(s, p, sent)
		}
		if mine := place(region.own); mine.Addr() != src.Addr() {
			s.Copy(mine, src)
		}
		for p := range t.peers() {
			t.await(s, p, sent)
			s.Copy(place(region.ranks[p]), src)
			t.tell(s, p, added)
		}
	})
}

// Broadcast copies root's b, memory that Alloc gave, to all ranks' b. Root sends each rank
// a part, which that rank sends on: root's link carries the array once. All ranks give
// the same place for b, which nobody checks. It enqueues on s and returns.
func (t *Team) Broadcast(s *cuda.Stream, b device.Buffer, root int) error {
	region, _, offset, ok := t.find(b)
	if !ok {
		return t.strange(b)
	}
	n := b.Len()
	if n == 0 {
		return t.going(s)
	}
	unit := t.size * align
	size := (n + unit - 1) / unit * align
	part := func(of, rank int) device.Buffer {
		return slice(region.ranks[of], offset+min(rank*size, n), offset+min((rank+1)*size, n))
	}
	return t.round(s, func() {
		if t.me == root {
			for p := range t.peers() {
				t.await(s, p, sent)
				s.Copy(part(p, p), part(root, p))
				t.tell(s, p, sent)
			}
			for p := range t.peers() {
				s.Copy(part(p, root), part(root, root))
				t.tell(s, p, added)
			}
			return
		}
		for p := range t.peers() {
			t.tell(s, p, sent) // this rank's array may be written to
		}
		t.await(s, root, sent) // its part has come
		for p := range t.peers() {
			if p != root {
				t.await(s, p, sent)
				s.Copy(part(p, t.me), part(t.me, t.me))
			}
			t.tell(s, p, added)
		}
	})
}

// AllToAll sends part p of src [size*n] to rank p, who has it as part r of dst [size*n],
// r being this rank. dst is memory that Alloc gave, src any that dst does not overlap. All
// ranks give the same place for dst, which nobody checks. It enqueues on s and returns.
func (t *Team) AllToAll(s *cuda.Stream, dst, src device.Buffer) error {
	region, _, offset, ok := t.find(dst)
	if !ok {
		return t.strange(dst)
	}
	n := dst.Len() / t.size
	if dst.Len() != t.size*n || src.Len() != dst.Len() {
		return fmt.Errorf("copy engines: %d bytes for %d ranks, and room for %d", src.Len(), t.size, dst.Len())
	}
	if n == 0 {
		return t.going(s)
	}
	place := func(rank int) device.Buffer { return region.ranks[rank].Slice(offset+t.me*n, offset+(t.me+1)*n) }
	return t.round(s, func() {
		for p := range t.peers() {
			t.tell(s, p, sent)
		}
		s.Copy(place(t.me), src.Slice(t.me*n, (t.me+1)*n))
		for p := range t.peers() {
			t.await(s, p, sent)
			s.Copy(place(p), src.Slice(p*n, (p+1)*n))
			t.tell(s, p, added)
		}
	})
}

// slice is b.Slice, also where it is empty and lies at b's end.
func slice(b device.Buffer, from, to int) device.Buffer {
	if from == to {
		return device.Buffer{}
	}
	return b.Slice(from, to)
}

func (t *Team) strange(b device.Buffer) error {
	return fmt.Errorf("copy engines: %d bytes at %#x are not memory of the team", b.Len(), b.Addr())
}

// round makes one round of a call, unless the team or the stream has failed. Waiting at
// its end for all peers to be done makes it safe to overwrite their slots, and the
// array, in the next.
func (t *Team) round(s *cuda.Stream, enqueue func()) error {
	t.enqueuing.Lock()
	defer t.enqueuing.Unlock()
	if err := t.going(s); err != nil {
		return err
	}
	t.seq++
	enqueue()
	for p := range t.peers() {
		t.await(s, p, added)
	}
	s.WriteValue32(t.passed().Addr(), t.seq)
	return s.Err()
}

// going is why no call can be enqueued on s, nil where one can.
func (t *Team) going(s *cuda.Stream) error {
	if err := t.failure(); err != nil {
		return err
	}
	return s.Err()
}

// deal sends each peer its part into this rank's slot there, and waits for what the
// peers send.
func (t *Team) deal(s *cuda.Stream, part func(peer int) device.Buffer) {
	for p := range t.peers() {
		mine := part(p)
		s.Copy(t.slot(p, t.me, mine.Len()), mine)
		t.tell(s, p, sent)
	}
	for p := range t.peers() {
		t.await(s, p, sent)
	}
}

// peers are the other ranks, from the next one on: all ranks begin with another.
func (t *Team) peers() func(yield func(p int) bool) {
	return func(yield func(int) bool) {
		for i := 1; i < t.size && yield((t.me+i)%t.size); i++ {
		}
	}
}

// tell says to a peer that this rank has come to a step of the round.
func (t *Team) tell(s *cuda.Stream, peer, step int) {
	s.WriteValue32(t.word(peer, t.me, step), t.seq)
}

// await makes s wait for a peer to come to a step of the round.
func (t *Team) await(s *cuda.Stream, peer, step int) {
	t.machine.wait(s, t.word(t.me, peer, step), t.seq)
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
