package comm

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// flight is a call on GPU memory that has been enqueued and has not ended.
type flight struct {
	work           *Work
	call           transport.Header // what both sides of a Send know it by
	peer           int              // whom it waits for; -1: it is not known
	entry          uint64           // in the history
	sent, received int64            // computed
	stream         *cuda.Stream
	algorithm      Algorithm
	predicted      time.Duration
	progress       gpuProgress // nil where it could not be enqueued
	since          time.Time   // when it was seen to run; zero until then
}

// submitGPU checks the buffers of a call on a stream of a GPU and enqueues it.
func (g *Group) submitGPU(s *cuda.Stream, c *call, dst, src device.Buffer) *Work {
	u := g.gpu
	switch {
	case u == nil:
		return g.refuse(s, c, fmt.Errorf("stream %s is one of %s, and this group moves host memory alone: give it the GPU in Options.Device", s.Name(), s.Device()))
	case s.Device() != device.Device(u.dev):
		return g.refuse(s, c, fmt.Errorf("stream %s is one of %s, and this group moves memory of %s and the host", s.Name(), s.Device(), u.dev))
	case u.engine == nil:
		return g.refuse(s, c, u.why)
	}
	for _, v := range []struct {
		name string
		buf  device.Buffer
	}{{"dst", dst}, {"src", src}} {
		if v.buf.Len() > 0 && v.buf.OnHost() {
			return g.refuse(s, c, fmt.Errorf("%s lies in host memory, and the stream is one of %s: all buffers of a call lie on the stream's device", v.name, u.dev))
		}
	}
	if err := g.overlap(c, dst, src); err != nil {
		return g.refuse(s, c, err)
	}
	c.to, c.from = dst, src
	return u.enqueue(s, c)
}

// enqueue gives the call its number and its place on the stream, and on the GPUs.
func (u *gpu) enqueue(s *cuda.Stream, c *call) *Work {
	g := u.g
	g.order.Lock()
	g.mu.Lock()
	shown := g.number(c)
	f := &flight{work: g.newWork(), call: c.wire, peer: -1, stream: s, entry: g.history.add(shown, true)}
	f.work.header = shown
	g.mu.Unlock()
	if c.Kind == transport.Send {
		f.peer = c.peer
	}
	f.sent, f.received = ringBytes(c, g.o.Size, g.o.Rank)
	f.algorithm = u.engine.algorithm(c)
	f.predicted = c.predicted
	err := u.issue(f, c)
	u.fly(f)
	g.order.Unlock()
	if err != nil {
		s.Fail(g.fail(err))
	}
	return f.work
}

// issue makes the call. g.order is held, so that calls are made in their order.
func (u *gpu) issue(f *flight, c *call) error {
	g := u.g
	if err := g.Err(); err != nil {
		return err
	}
	if err := f.stream.Err(); err != nil {
		return &StreamError{Rank: g.o.Rank, Host: g.o.Host, Err: err}
	}
	if g.o.Check {
		if err := g.compare(c, u.how(c)); err != nil {
			return err
		}
	}
	u.setMaking(&underWay{f.work.header, true, time.Now()})
	p, err := u.launch(f.stream, c)
	if err != nil {
		if errors.Is(err, nccl.ErrSlow) {
			return u.late(f)
		}
		return g.explain(c, err)
	}
	u.setMaking(nil)
	f.progress = p
	return nil
}

// launch enqueues the call by whoever makes it.
func (u *gpu) launch(s *cuda.Stream, c *call) (gpuProgress, error) {
	if e, ok := u.engine.(*byPeers); ok && e.marks(c) {
		m, err := e.mark(s, c)
		return &byMark{Mark: m, stream: s}, err
	}
	start := u.before(s)
	end, err := u.engine.enqueue(s, c)
	if err != nil {
		start.Release()
		return nil, err
	}
	u.latest = end.Hold()
	return byEvents{start, end}, nil
}

// before is the place before the next call: behind the latest one, where nothing came
// between and that has not been seen to end, for else the GPU has idled since. Every event
// costs the GPU a microsecond.
func (u *gpu) before(s *cuda.Stream) *cuda.Event {
	e := u.latest
	u.latest = nil
	switch {
	case e == nil:
	case len(u.flying()) > 0 && s.Latest(e):
		return e
	default:
		e.Release()
	}
	return s.Record().(*cuda.Event)
}

// how tells what all ranks must share of a call beside its header: who makes it, and
// where, if the place has to be the same. It is the engine's name, but for byPeers.
func (u *gpu) how(c *call) string {
	if e, ok := u.engine.(*byPeers); ok {
		return e.how(c)
	}
	return string(u.engine.algorithm(c))
}

func (u *gpu) setMaking(c *underWay) {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	u.making = c
}

// late is the error of a call that is not done in time.
func (u *gpu) late(f *flight) error {
	e := &StuckError{TimeoutError: transport.TimeoutError{Peer: f.peer, Call: f.call, Wait: u.g.o.Timeout}, Rank: u.g.o.Rank, GPU: u.dev.String(), Link: u.link(f.algorithm)}
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	if at := u.awaits(f); at != nil && e.Peer < 0 {
		e.Peer = at.Rank
	}
	return e
}

// fly hands the call to routineWatch.
func (u *gpu) fly(f *flight) {
	u.g.mu.Lock()
	landed := u.landed
	if !landed {
		u.flights = append(u.flights, f)
	}
	u.g.mu.Unlock()
	if landed {
		f.stream.Fail(u.g.Err())
		u.retire(f, Result{Algorithm: f.algorithm, End: time.Now(), Err: u.g.Err()})
		return
	}
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// ringBytes is what rank me of n sends and receives in call c, if ranks only talk to
// their neighbours in a ring. NCCL does not count, and the copy engines move as much.
func ringBytes(c *call, n, me int) (sent, received int64) {
	size := int64(c.bytes(int(c.Count)))
	if n == 1 {
		return 0, 0
	}
	others := int64(n - 1)
	fromRoot := mod(me-int(c.Root), n)
	switch c.Kind {
	case transport.AllReduce:
		sent = 2 * others * size / int64(n)
		return sent, sent
	case transport.ReduceScatter, transport.AllGather:
		return others * size, others * size
	case transport.Broadcast: // from the root on, to the last
		if fromRoot < n-1 {
			sent = size
		}
		if fromRoot > 0 {
			received = size
		}
		return sent, received
	case transport.Reduce: // from the one behind the root on, to the root
		if fromRoot > 0 {
			sent = size
		}
		if fromRoot != 1 {
			received = size
		}
		return sent, received
	case transport.Gather, transport.Scatter:
		toRoot := c.Kind == transport.Gather
		switch {
		case fromRoot != 0 && toRoot:
			return size, 0
		case fromRoot != 0:
			return 0, size
		case toRoot:
			return 0, others * size
		default:
			return others * size, 0
		}
	case transport.AllToAll:
		if c.sendCounts == nil {
			return others * size, others * size
		}
		for p := range n {
			if p != me {
				sent += int64(c.bytes(c.sendCounts[p]))
				received += int64(c.bytes(c.recvCounts[p]))
			}
		}
		return sent, received
	case transport.Send:
		if c.peer == int(c.Root) {
			return size, 0
		}
		return 0, size
	}
	return 0, 0
}
