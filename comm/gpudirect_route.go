package comm

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
)

// route is a call's way round a ring of GPUs, as one rank has it: a row of messages that
// each rank sends and receives under the same numbers, and what it makes of them. Message i
// is sent from a slot and arrives in the receiver's; what a rank sends as message i it
// makes, at place i, of its own memory and of message i-window, or of one of both. So
// window messages are on their way at once, and the places behind the last message take in
// the last ones.
type route struct {
	*call
	n, me    int
	window   int
	messages int
	turns    int // how often the ring is run, so that no message exceeds a slot
	steps    int // of a turn, each of window messages
}

// leastMessage is the size of array parts that are worth being cut, a variable for tests.
var leastMessage = 64 << 10

// newRoute lays out a call of rank me of n for messages of at most slot bytes, of which so
// many may be on their way.
func newRoute(c *call, n, me, slot, most int) *route {
	r := &route{call: c, n: n, me: me}
	part := c.bytes(int(c.Count))
	switch c.Kind {
	case transport.AllReduce:
		part = c.bytes((int(c.Count) + n - 1) / n)
		r.steps = 2 * (n - 1)
	case transport.Broadcast:
		r.steps = 1
	default:
		r.steps = n - 1
	}
	r.window = min(max(part/leastMessage, 1), most)
	each := r.window * (slot / c.DType.Size() * c.DType.Size())
	r.turns = max((part+each-1)/each, 1)
	r.messages = r.turns * r.steps * r.window
	if c.Kind == transport.Broadcast { // which takes a window to get from a rank to the next
		r.messages += (n - 2) * r.window
	}
	return r
}

// places is how many there are.
func (r *route) places() int { return r.messages + r.window }

// span is the elements of part seg of an array that belong to message q of a turn, counted
// from the part's first one; of an AllReduce, whose count is of all parts, from the array's.
func (r *route) span(seg, turn, q int) (lo, hi int) {
	from, to := part(int(r.Count), r.turns, turn)
	if r.Kind == transport.AllReduce {
		// All parts of a turn lie side by side, so that no rank's are much larger.
		lo, hi = part(to-from, r.n*r.window, mod(seg, r.n)*r.window+q)
	} else {
		lo, hi = part(to-from, r.window, q)
	}
	return from + lo, from + hi
}

// at is the turn, the step and the message of the step that message i is.
func (r *route) at(i int) (turn, step, q int) {
	q = i % r.window
	step = i / r.window % r.steps
	return i / r.window / r.steps, step, q
}

// piece is bytes of this rank's memory that belong to a message; where seg counts, of part
// seg of the array.
func (r *route) piece(b device.Buffer, seg, turn, q int) device.Buffer {
	lo, hi := r.span(seg, turn, q)
	at := 0 // where the part begins
	if r.Kind != transport.AllReduce && r.Kind != transport.Broadcast {
		at = mod(seg, r.n) * int(r.Count)
	}
	return b.Slice(r.bytes(at+lo), r.bytes(at+hi))
}

// size is the bytes of message i, of the rank that sends it.
func (r *route) size(i, sender int) int {
	turn, step, q := r.at(i)
	lo, hi := r.span(sender-step, turn, q)
	return r.bytes(hi - lo)
}

// send is to whom message i goes, and of how many bytes it is. none: this rank sends none.
func (r *route) send(i int) (peer, bytes int) { return r.leg(i, 1) }

// recv is from whom message i comes.
func (r *route) recv(i int) (peer, bytes int) { return r.leg(i, -1) }

const none = -1

// leg is the other end of message i, way ranks to the right of this one in a ring.
func (r *route) leg(i, way int) (peer, bytes int) {
	if i < 0 || i >= r.messages {
		return none, 0
	}
	sender := r.me
	peer = mod(r.me+way, r.n)
	if r.Kind == transport.AllToAll {
		_, step, _ := r.at(i)
		peer = mod(r.me+way*(step+1), r.n)
	}
	if way < 0 {
		sender = peer
	}
	if r.Kind == transport.Broadcast {
		if i = r.data(i, sender); i == none {
			return none, 0
		}
	}
	return peer, r.size(i, sender)
}

// data is which message of the root's a rank of a broadcast sends as message i; none where
// it sends nothing. The rank d behind the root sends d windows later, the last none.
func (r *route) data(i, sender int) int {
	d := mod(sender-int(r.Root), r.n)
	i -= d * r.window
	if d == r.n-1 || i < 0 || i >= r.turns*r.window {
		return none
	}
	return i
}

// move is a copy from a to dst, or where b is there what the operation makes of a and b.
type move struct {
	dst, a, b device.Buffer
	divide    bool // by the number of ranks, for Avg
}

// fit is as much of b as another piece of memory has.
func fit(b, like device.Buffer) device.Buffer { return b.Slice(0, like.Len()) }

// inside is what this rank moves within its own memory, before all else.
func (r *route) inside() []move {
	var own move
	count := r.bytes(int(r.Count))
	part := func(b device.Buffer) device.Buffer { return b.Slice(r.me*count, (r.me+1)*count) }
	switch r.Kind {
	case transport.AllGather:
		own = move{dst: part(r.to), a: r.from}
	case transport.AllToAll:
		own = move{dst: part(r.to), a: part(r.from)}
	}
	if own.a.Len() == 0 || own.a.Addr() == own.dst.Addr() {
		return nil
	}
	return []move{own}
}

// moves is what this rank does at place i: in is the slot of message i-window, if it has
// come to this rank, and out that of message i, if this rank sends it.
func (r *route) moves(i int, in, out device.Buffer) []move {
	switch r.Kind {
	case transport.AllReduce:
		return r.reduce(i, in, out)
	case transport.ReduceScatter:
		return r.scatter(i, in, out)
	case transport.Broadcast:
		return r.pass(i, in, out)
	case transport.AllToAll:
		return r.swap(i, in, out)
	}
	return r.gather(i, in, out)
}

// reduce is the ring of flat.allReduceRing.
func (r *route) reduce(i int, in, out device.Buffer) (list []move) {
	if j := i - r.window; j >= 0 {
		turn, step, q := r.at(j)
		seg := r.me - step - 1
		dst, own := r.piece(r.to, seg, turn, q), r.piece(r.from, seg, turn, q)
		in := fit(in, own)
		switch {
		case step < r.n-2:
			return []move{{dst: fit(out, own), a: in, b: own}}
		case step == r.n-2: // the sum is whole
			list = append(list, move{dst: dst, a: in, b: own, divide: r.Op == Avg})
		default:
			list = append(list, move{dst: dst, a: in})
		}
		if step < r.steps-1 {
			return append(list, move{dst: fit(out, dst), a: dst})
		}
	}
	if i < r.messages { // the first step of a turn
		turn, _, q := r.at(i)
		own := r.piece(r.from, r.me, turn, q)
		list = append(list, move{dst: fit(out, own), a: own})
	}
	return list
}

// scatter is the first half of reduce, whose sums end at their owner.
func (r *route) scatter(i int, in, out device.Buffer) (list []move) {
	if j := i - r.window; j >= 0 {
		turn, step, q := r.at(j)
		own := r.piece(r.from, r.me-step-2, turn, q)
		in := fit(in, own)
		if step < r.steps-1 {
			return []move{{dst: fit(out, own), a: in, b: own}}
		}
		lo, hi := r.span(r.me, turn, q)
		list = append(list, move{dst: r.to.Slice(r.bytes(lo), r.bytes(hi)), a: in, b: own, divide: r.Op == Avg})
	}
	if i < r.messages {
		turn, _, q := r.at(i)
		own := r.piece(r.from, r.me-1, turn, q)
		list = append(list, move{dst: fit(out, own), a: own})
	}
	return list
}

// gather passes every rank's part round.
func (r *route) gather(i int, in, out device.Buffer) (list []move) {
	if j := i - r.window; j >= 0 {
		turn, step, q := r.at(j)
		dst := r.piece(r.to, r.me-step-1, turn, q)
		list = append(list, move{dst: dst, a: fit(in, dst)})
		if step < r.steps-1 {
			return append(list, move{dst: fit(out, dst), a: dst})
		}
	}
	if i < r.messages {
		turn, _, q := r.at(i)
		lo, hi := r.span(r.me, turn, q)
		own := r.from.Slice(r.bytes(lo), r.bytes(hi))
		list = append(list, move{dst: fit(out, own), a: own})
	}
	return list
}

// pass hands the root's array from rank to rank.
func (r *route) pass(i int, in, out device.Buffer) (list []move) {
	if peer, _ := r.recv(i - r.window); peer != none {
		turn, _, q := r.at(r.data(i-r.window, peer))
		dst := r.piece(r.to, 0, turn, q)
		list = append(list, move{dst: dst, a: fit(in, dst)})
	}
	if peer, _ := r.send(i); peer != none {
		turn, _, q := r.at(r.data(i, r.me))
		own := r.piece(r.to, 0, turn, q) // the root's is from
		list = append(list, move{dst: fit(out, own), a: own})
	}
	return list
}

// swap sends each rank's part straight to it.
func (r *route) swap(i int, in, out device.Buffer) (list []move) {
	if j := i - r.window; j >= 0 {
		turn, step, q := r.at(j)
		dst := r.piece(r.to, r.me-step-1, turn, q)
		list = append(list, move{dst: dst, a: fit(in, dst)})
	}
	if i < r.messages {
		turn, step, q := r.at(i)
		own := r.piece(r.from, r.me+step+1, turn, q)
		list = append(list, move{dst: fit(out, own), a: own})
	}
	return list
}
