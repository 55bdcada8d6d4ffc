package shm

import "github.com/gorun-dev/gorun/comm/transport"

// Who gets the results of a mailbox, where it is not one rank.
const (
	toAll = -1 // every rank gets all shards
	toOwn = -2 // every rank gets its own shard
)

// reduction is what one rank puts into a mailbox and gets out of it. The source
// is cut into shards of per bytes, one for each rank, the last ones shorter.
type reduction struct {
	dst, src []byte // dst is nil where this rank gets nothing
	per      int
	to       int // toAll, toOwn or the rank that gets all shards
}

// mailbox reduces private buffers through a few small slots, which stay in cache.
// A rank puts its contribution to a shard into a slot; the owner of the shard adds
// all contributions and overwrites each of them with the sum; the rank reads its
// slot back, if it wants the sum.
//
// Both ends write a slot's lines, so a line moves between two cores in a state that
// allows writing. A line that one core only reads stays behind as a shared copy,
// and the next store of the other core has to invalidate it first: that costs 3
// times as much as storing a sum or a zero that nobody wants. For the same reason
// no slot has two readers.
//
// Step k posts chunk k+1, reduces chunk k and fetches chunk k-1. A rank refills a
// slot only after the owner took what was in it, which is so for every chunk up to
// k-2: no flag has to say that a slot is free.
//
// entered says that agree was called. If not, it is called when the first chunk is
// posted: the slots are free in any case.
func (t *Team) mailbox(c *transport.Call, x reduction, entered bool) error {
	base, steps := t.chunks, (x.per+t.chunk-1)/t.chunk
	for k := -1; k <= steps; k++ {
		if next := k + 1; next < steps {
			for i := 1; i < t.ranks; i++ {
				r := t.peer(i)
				p := t.part(x.src, x.per, r, next)
				t.dsts[i-1], t.srcs[i-1] = t.slot(t.rank, r, base+uint32(next), len(p)), p
			}
			t.helpers.copies(t.dsts[:t.ranks-1], t.srcs[:t.ranks-1])
			signal(t.flag(t.rank, posted), base+uint32(next)+1)
		}
		if !entered {
			if _, err := t.agree(c); err != nil {
				return err
			}
			entered = true
		}
		if k >= 0 && k < steps {
			if err := t.await(c, posted, base+uint32(k)+1); err != nil {
				return err
			}
			t.reduceSlots(c, x, k)
			signal(t.flag(t.rank, taken), base+uint32(k)+1)
		}
		if last := k - 1; last >= 0 {
			n := 0
			for i := 1; i < t.ranks; i++ {
				r := t.peer(i)
				if err := t.wait(c, r, t.flag(r, taken), base+uint32(last)+1); err != nil {
					return err
				}
				if x.to != toAll && x.to != t.rank {
					continue
				}
				p := t.part(x.dst, x.per, r, last)
				t.dsts[n], t.srcs[n] = p, t.slot(t.rank, r, base+uint32(last), len(p))
				if n++; t.helpers.n == 0 { // copies while the next peer may still add
					t.helpers.copies(t.dsts[:n], t.srcs[:n])
					n = 0
				}
			}
			t.helpers.copies(t.dsts[:n], t.srcs[:n])
		}
	}
	t.chunks += uint32(steps)
	return nil
}

// reduceSlots adds chunk k of this rank's shard, and stores the sum in all slots and
// where it is wanted.
func (t *Team) reduceSlots(c *transport.Call, x reduction, k int) {
	p := t.part(x.src, x.per, t.rank, k)
	for r := range t.ranks {
		t.srcs[r] = t.slot(r, t.rank, t.chunks+uint32(k), len(p))
	}
	n := 0
	for i := 1; i < t.ranks; i++ {
		t.dsts[n] = t.srcs[t.peer(i)]
		n++
	}
	switch {
	case x.to == toOwn:
		t.dsts[n] = x.dst[k*t.chunk:][:len(p)]
		n++
	case x.to == toAll || x.to == t.rank:
		t.dsts[n] = t.part(x.dst, x.per, t.rank, k)
		n++
	}
	t.srcs[t.rank] = p
	t.helpers.reduce(c, t.dsts[:n], t.srcs[:t.ranks])
}

// part is chunk k of rank's shard of x.
func (t *Team) part(x []byte, per, rank, k int) []byte {
	lo, hi := min(rank*per, len(x)), min((rank+1)*per, len(x))
	return x[min(lo+k*t.chunk, hi):min(lo+(k+1)*t.chunk, hi)]
}

// spread gives n bytes of one rank, or of each, to all the others. root is the rank
// that has them, or toAll. Rank r's bytes are at r*stride of buf, and of every
// peer's buf afterwards. A source refills its slots when all have taken what was in
// them.
func (t *Team) spread(c *transport.Call, buf []byte, n, stride, root int, entered bool) error {
	base, steps := t.chunks, (n+t.chunk-1)/t.chunk
	chunk := func(r, k int) []byte {
		x := buf[r*stride:][:n]
		return x[k*t.chunk : min((k+1)*t.chunk, n)]
	}
	source := root == toAll || root == t.rank
	for k := -1; k < steps; k++ {
		if next := k + 1; next < steps && source {
			if err := t.await(c, taken, base+uint32(next)+1-depth); err != nil {
				return err
			}
			p := chunk(t.rank, next)
			for i := 1; i < t.ranks; i++ {
				copy(t.slot(t.rank, t.peer(i), base+uint32(next), len(p)), p)
			}
			signal(t.flag(t.rank, posted), base+uint32(next)+1)
		}
		if !entered {
			if _, err := t.agree(c); err != nil {
				return err
			}
			entered = true
		}
		if k < 0 {
			continue
		}
		for i := 1; i < t.ranks; i++ {
			r := t.peer(i)
			if root != toAll && root != r {
				continue
			}
			if err := t.wait(c, r, t.flag(r, posted), base+uint32(k)+1); err != nil {
				return err
			}
			p := chunk(r, k)
			copyOut(p, t.slot(r, t.rank, base+uint32(k), len(p)))
		}
		if !source { // keeps in step with the source, for whoever looks who is behind
			signal(t.flag(t.rank, posted), base+uint32(k)+1)
		}
		signal(t.flag(t.rank, taken), base+uint32(k)+1)
	}
	t.chunks += uint32(steps)
	if source {
		return t.await(c, taken, t.chunks)
	}
	return nil
}

// copyOut takes what a peer put into a slot, and leaves zeros: see mailbox.
func copyOut(dst, slot []byte) {
	copy(dst, slot)
	clear(slot)
}
