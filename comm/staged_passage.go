package comm

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
)

// passage is a call's way through the slots, in pieces. A piece has some elements of each
// part of the call's arrays, the same ones on all ranks, which therefore are a call of the
// same kind.
type passage struct {
	call     *call
	dst, src side
	me       int
	before   uint32 // the last piece of the call before
	pieces   int    // that this rank has something in, and at least one
	elems    int    // of each part in a piece, at most
}

// side is one of a call's arrays: equal parts, one after another, or parts of the given
// counts.
type side struct {
	buf    device.Buffer
	parts  int // 0: this rank's does not matter
	counts []int
}

// newPassage cuts a call of rank me of n for slots of so many bytes. What is cut where must
// be the same on all ranks.
func newPassage(c *call, n, me, slot int, before uint32) *passage {
	dst, src := partsOf(c, n, me)
	p := &passage{call: c, me: me, before: before, dst: side{c.to, dst, c.recvCounts}, src: side{c.from, src, c.sendCounts}}
	most := int(c.Count)
	for _, counts := range [][]int{c.sendCounts, c.recvCounts} {
		for _, n := range counts {
			most = max(most, n)
		}
	}
	room := max((slot-gap)/widthOf(c.Kind, n)/c.DType.Size(), 1)
	p.pieces = max((most+room-1)/room, 1)
	p.elems = room
	if c.sendCounts == nil { // else other ranks may have more
		p.elems = max((most+p.pieces-1)/p.pieces, 1)
	}
	return p
}

// gap is the most that lies between the two arrays of an AllToAll in a slot.
const gap = 64

// partsOf is how many parts dst and src have on rank me, as the Group's methods say.
func partsOf(c *call, n, me int) (dst, src int) {
	root := int(c.Root) == me
	switch c.Kind {
	case transport.AllReduce:
		return 1, 1
	case transport.ReduceScatter:
		return 1, n
	case transport.AllGather:
		return n, 1
	case transport.AllToAll:
		return n, n
	case transport.Broadcast:
		if root {
			return 0, 1
		}
		return 1, 0
	case transport.Reduce:
		if root {
			return 1, 1
		}
		return 0, 1
	case transport.Gather:
		if root {
			return n, 1
		}
		return 0, 1
	case transport.Scatter:
		if root {
			return 1, n
		}
		return 1, 0
	case transport.Send:
		if c.peer == int(c.Root) {
			return 0, 1
		}
		return 1, 0
	}
	return 0, 0
}

// widthOf is how many parts of a call a slot has to hold on the rank that has most.
func widthOf(k transport.Kind, n int) int {
	switch k {
	case transport.ReduceScatter, transport.AllGather, transport.Gather, transport.Scatter:
		return n
	case transport.AllToAll:
		return 2 * n
	}
	return 1
}

// number is that of the call's piece i among those of all calls.
func (p *passage) number(i int) uint32 { return p.before + 1 + uint32(i) }

// span is the elements of part number part of a side that are in piece i.
func (p *passage) span(s side, part, i int) (from, to int) {
	count := int(p.call.Count)
	if s.counts != nil {
		count = s.counts[part]
	}
	return piece(0, count, p.elems, i)
}

// each calls f for the parts of a side that piece i has something of, with that.
func (p *passage) each(s side, i int, f func(part int, on device.Buffer)) {
	for part := range s.parts {
		if lo, hi := p.span(s, part, i); lo < hi {
			f(part, p.call.part(s.buf, s.counts, part).Slice(p.call.bytes(lo), p.call.bytes(hi)))
		}
	}
}

// there reports whether a part of dst has its results already: it is src.
func (p *passage) there(part int) bool {
	k := p.call.Kind
	return (k == transport.AllGather || k == transport.Gather) && p.call.part(p.dst.buf, nil, part).Addr() == p.src.buf.Addr()
}

// bytes is what piece i has of a side.
func (p *passage) bytes(s side, i int) (n int) {
	for part := range s.parts {
		lo, hi := p.span(s, part, i)
		n += p.call.bytes(hi - lo)
	}
	return n
}

// place lays the two arrays of piece i into a slot: in place, but for an AllToAll, which
// has no such form. An array that does not matter on this rank is nil.
func (p *passage) place(i int, slot []byte) (dst, src []byte) {
	to, from := p.bytes(p.dst, i), p.bytes(p.src, i)
	if p.call.Kind == transport.AllToAll {
		behind := (from + gap - 1) &^ (gap - 1)
		return slot[behind:][:to], slot[:from]
	}
	whole := slot[:max(to, from)]
	lay := func(s side, n int) []byte {
		switch {
		case p.call.Kind == transport.Broadcast, n == len(whole) && s.parts > 0:
			return whole
		case s.parts == 0:
			return nil
		}
		return whole[p.me*n:][:n]
	}
	return lay(p.dst, to), lay(p.src, from)
}

// step is the call that piece i is on this rank, in a slot.
func (p *passage) step(i int, slot []byte) call {
	s := *p.call
	s.dst, s.src = p.place(i, slot)
	if s.sendCounts != nil {
		s.sendCounts, s.recvCounts = p.counts(p.src, i), p.counts(p.dst, i)
		return s
	}
	lo, hi := piece(0, int(s.Count), p.elems, i)
	s.Count = uint64(hi - lo)
	return s
}

func (p *passage) counts(s side, i int) []int {
	counts := make([]int, s.parts)
	for part := range counts {
		lo, hi := p.span(s, part, i)
		counts[part] = hi - lo
	}
	return counts
}
