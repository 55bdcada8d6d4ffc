package shm

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// copyBytes bounds one copy: it cannot be preempted.
const copyBytes = 256 << 10

// allReduceSmall is one-shot: everyone publishes everything and sums everything,
// within one flight of a flag. Two buffers suffice: a peer that entered call s has
// left s-1, so nobody reads the buffer of s-2 any more.
func (t *Team) allReduceSmall(c *transport.Call, dst, src []byte) error {
	op := t.ops.Load() + 1
	copy(t.small(t.rank, op, len(src)), src)
	if err := t.publish(c, 0, 0); err != nil {
		return err
	}
	if _, err := t.agree(c); err != nil {
		return err
	}
	for r := range t.ranks {
		t.srcs[r] = t.small(r, op, len(src))
	}
	t.dsts[0] = dst
	vec.ReduceMany(c.DType, vec.Op(c.Op), t.dsts[:1], t.srcs[:t.ranks])
	return nil
}

// push works on buffers in the arena, after agree: each rank sums its shard of all
// sources and stores the sum in all destinations.
func (t *Team) push(c *transport.Call, dst, src uint64, n int) error {
	lo, hi := shard(n, t.ranks, t.rank)
	for r := range t.ranks {
		t.srcs[r] = t.at(src, r, n)[lo:hi]
		t.dsts[r] = t.at(dst, r, n)[lo:hi]
	}
	t.helpers.reduce(c, t.dsts[:t.ranks], t.srcs[:t.ranks])
	return t.finish(c)
}

// pullShard works on sources in the arena, after agree: each rank sums its part of
// all of them.
func (t *Team) pullShard(c *transport.Call, dst []byte, src uint64) error {
	n := len(dst)
	for r := range t.ranks {
		t.srcs[r] = t.at(src, r, n*t.ranks)[t.rank*n : (t.rank+1)*n]
	}
	t.dsts[0] = dst
	t.helpers.reduce(c, t.dsts[:1], t.srcs[:t.ranks])
	return t.finish(c)
}

// pushAll works on destinations in the arena, after agree: each rank stores src at
// off in all of them.
func (t *Team) pushAll(c *transport.Call, dst uint64, off, n int, src []byte) error {
	for i := range t.ranks {
		t.dsts[i], t.srcs[i] = t.at(dst, t.peer(i), n)[off:off+len(src)], src
	}
	t.helpers.copies(t.dsts[:t.ranks], t.srcs[:t.ranks])
	return t.finish(c)
}

// pullFrom works on buffers in the arena, after agree: every rank copies root's.
func (t *Team) pullFrom(c *transport.Call, buf []byte, place uint64, root int) error {
	if t.rank != root {
		t.dsts[0], t.srcs[0] = buf, t.at(place, root, len(buf))
		t.helpers.copies(t.dsts[:1], t.srcs[:1])
	}
	return t.finish(c)
}

// finish ends a call in which ranks touched each other's buffers.
func (t *Team) finish(c *transport.Call) error {
	op := t.ops.Load()
	signal(t.flag(t.rank, done), op)
	return t.await(c, done, op)
}

// shard is the part of n bytes that rank reduces; parts start on cache lines.
func shard(n, ranks, rank int) (lo, hi int) {
	per := shardBytes(n, ranks)
	return min(rank*per, n), min((rank+1)*per, n)
}

func shardBytes(n, ranks int) int { return align((n+ranks-1)/ranks, 64) }

func copyBounded(dst, src []byte) {
	if len(dst) > 0 && &dst[0] == &src[0] {
		return
	}
	for len(src) > 0 {
		n := copy(dst, src[:min(len(src), copyBytes)])
		dst, src = dst[n:], src[n:]
	}
}
