package comm

import (
	"errors"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// slot is a call on its way through a stream. Slots are used again, so that a call
// allocates nothing; they live in the group's queue from enqueue to retire.
type slot struct {
	group *Group
	run   func() error  // execute, bound once
	turn  chan struct{} // holds a token when the slot has become the oldest

	// Guarded by group.mu.
	work    *Work
	stream  stream
	entry   uint64 // in the history
	started bool
	next    *slot

	call call // execute's, once started; but for Deadline
}

// stream is a stream of the host, which runs Go functions.
type stream interface {
	Do(name string, f func() error)
	Err() error
}

// worksPerSlab is how many Works are made at once. Their owners may keep them for
// as long as they like, so they are not used again.
const worksPerSlab = 64

// take returns a free slot with a fresh Work. g.mu is held.
func (g *Group) take() *slot {
	s := g.free
	if s != nil {
		g.free, s.next = s.next, nil
	} else {
		s = &slot{group: g, turn: make(chan struct{}, 1)}
		s.run = s.execute
	}
	s.work = g.newWork()
	return s
}

// newWork returns a Work that nobody has used. g.mu is held.
func (g *Group) newWork() *Work {
	if len(g.works) == 0 {
		g.works = make([]Work, worksPerSlab)
	}
	w := &g.works[0]
	g.works = g.works[1:]
	return w
}

// place gives the call its number and its place on the stream.
func (g *Group) place(st stream, c *call) *Work {
	g.order.Lock()
	g.mu.Lock()
	shown := g.number(c)
	s := g.take()
	w := s.work
	w.header, s.call, s.stream, s.started = shown, *c, st, false
	s.entry = g.history.add(shown, false)
	if g.last == nil {
		g.oldest = s
	} else {
		g.last.next = s
	}
	g.last = s
	dead := g.Err()
	g.mu.Unlock()
	if dead != nil {
		w.finish(Result{Err: dead})
	}
	st.Do(c.Kind.String(), s.run)
	g.order.Unlock()
	if err := st.Err(); err != nil && dead == nil {
		g.fail(&StreamError{Rank: g.o.Rank, Host: g.o.Host, Err: err})
	}
	return w
}

// number completes the call's header and returns it as a user knows it. Send and
// Recv are numbered by pair of ranks, not with the collectives, and look the same
// in messages. g.mu is held.
func (g *Group) number(c *call) (shown transport.Header) {
	c.Group = g.id
	defer func() { c.wire = c.Header }()
	switch c.Kind {
	case transport.Send:
		p := &g.pairs[c.peer]
		p.sent++
		c.Seq, c.Root = p.sent, int32(c.peer)
		return c.Header
	case transport.Recv:
		p := &g.pairs[c.peer]
		p.received++
		c.Seq, c.Root = p.received, int32(c.peer)
		shown = c.Header
		c.Kind, c.Root = transport.Send, int32(g.o.Rank)
		return shown
	}
	g.seq++
	c.Seq = g.seq
	return c.Header
}

// refuse ends the group because of a call that cannot be made: the other ranks
// would wait for it in vain.
func (g *Group) refuse(on device.Stream, c *call, err error) *Work {
	c.Group = g.id
	err = g.fail(&CallError{Rank: g.o.Rank, Host: g.o.Host, Call: c.Header, Err: err})
	w := &Work{header: c.Header}
	w.finish(Result{Err: err})
	switch st := on.(type) {
	case stream:
		st.Do(c.Kind.String(), func() error { return err })
	case *cuda.Stream:
		st.Fail(err)
	}
	return w
}

// execute runs the call. The stream calls it.
func (s *slot) execute() error {
	g := s.group
	if err := s.waitTurn(); err != nil {
		s.work.finish(Result{Err: err})
		return err
	}
	r := Result{Start: s.call.Deadline.Add(-g.o.Timeout)}
	sent, received := g.moved()
	if err := g.engine.run(&s.call); err != nil {
		r.Err = g.fail(g.explain(&s.call, err))
		g.engine.stop() // from here on nothing touches the call's memory
	}
	r.End, r.Algorithm, r.Predicted = time.Now(), s.call.algorithm, s.call.predicted
	r.Sent, r.Received = g.moved()
	r.Sent, r.Received = r.Sent-sent, r.Received-received
	s.retire(r)
	return r.Err
}

// waitTurn waits until all earlier calls of the group have ended.
func (s *slot) waitTurn() error {
	g := s.group
	g.mu.Lock()
	first := g.oldest == s
	g.mu.Unlock()
	if !first {
		select {
		case <-s.turn:
		case <-g.dead:
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.Err(); err != nil {
		return err
	}
	now := time.Now()
	s.started = true
	s.call.Deadline = now.Add(g.o.Timeout)
	g.history.start(s.entry, now)
	return nil
}

// retire takes the slot, which is the oldest, out of the queue and lets the next
// one start.
func (s *slot) retire(r Result) {
	g := s.group
	g.mu.Lock()
	w := s.work
	g.history.end(s.entry, r)
	g.stats.add(w.header, g.o.Size, false, r)
	if r.Err == nil { // else nothing starts any more
		g.ended = w.header
		g.oldest = s.next
		if g.oldest == nil {
			g.last = nil
		} else {
			select {
			case g.oldest.turn <- struct{}{}:
			default:
			}
		}
		select {
		case <-s.turn:
		default:
		}
		s.work, s.stream, s.call = nil, nil, call{}
		s.next, g.free = g.free, s
	}
	g.mu.Unlock()
	w.finish(r)
}

// explain adds rank, host and call to an error that does not say them.
func (g *Group) explain(c *call, err error) error {
	if late, ok := errors.AsType[*transport.TimeoutError](err); ok {
		return &transport.TimeoutError{Peer: late.Peer, Call: c.wire, Wait: late.Wait} // not of a step of the call
	}
	if verdictOf(g, err).Kind != "" {
		return err
	}
	return &CallError{Rank: g.o.Rank, Host: g.o.Host, Call: c.Header, Err: err}
}
