// Package comm makes groups of processes, and lets them reduce, gather and send
// arrays.
//
//	g, err := comm.Join(ctx)                    // in a program started by gorun
//	w := g.AllReduce(stream, grads, dtype.F32, comm.Sum)
//	...                                         // the stream goes on when the sums are there
//	err = stream.Synchronize(ctx)
//
// A collective is enqueued on a stream and returns at once. All ranks of a group
// make the same calls in the same order; which streams they use is their own
// affair, the calls of a group run one after another. Buffers belong to the call
// until it has ended.
//
// On a stream of the CPU a call moves host memory. A group whose Options name a GPU
// moves that GPU's memory too, on its streams: by NCCL, by kernels and copy engines of the
// GPUs themselves where AllReduce says so, or through the host's memory, as Options.Engine
// says. All buffers of a call lie on the stream's device. Calls of the two kinds have one
// order and one numbering, but do not wait for each other. Where ranks have several groups
// with GPUs, one goroutine makes the calls of all of them, in the same order on every rank.
//
// All ranks get the same bits, and the same bits again for the same number of
// ranks, sizes and algorithm. On GPUs the machine has a say in the algorithm. NCCL
// chooses its own from what it finds there; it may round 16-bit floats at every rank,
// and takes the average of floats by scaling each rank's part before the sum. Where GPUs
// of one host do without it, 16-bit floats are summed in float32, in the order of the
// ranks, and scaled and rounded once.
//
// A group fails as a whole and for good: when a rank is lost, makes another call
// than the others, is late by more than Options.Timeout, or calls Abort, every
// rank's running and later calls end with one error that names the rank and the
// call. Their streams fail with it.
package comm

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/gorun-dev/gorun/comm/transport"
)

// Group is a fixed set of ranks. Its methods may be called from any goroutine;
// the order of calls is the order of work.
type Group struct {
	o       Options // as New completed them
	id      uint32  // stands in every message
	members []member
	engine  engine // of host memory
	gpu     *gpu   // nil in a group without a GPU
	wires   wires  // of engine
	tuned   tuning
	alarm   *alarm
	present presence // of other ranks, in a group with a GPU; the alarm's alone
	maker   int      // the goroutine that made the group

	order sync.Mutex     // held while a call gets its number and its place on a stream
	subs  map[string]int // groups made of the same ranks so far; guarded by order

	mu           sync.Mutex // guards what follows
	seq          uint64
	pairs        []pairSeq // of Send and Recv, for each rank
	oldest, last *slot     // calls on host memory that have not ended
	free         *slot
	works        []Work // not yet handed out
	history      recorder
	ended        transport.Header // the latest call on host memory that has ended
	stats        Stats

	failed  atomic.Pointer[error]
	dead    chan struct{} // closed once failed is set
	closing sync.Once
	closed  error
}

type pairSeq struct{ sent, received uint64 }

// Rank is this process's place in the group.
func (g *Group) Rank() int { return g.o.Rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.o.Size }

// Host is the name of the host on which a rank runs, as its Options say. A rank that is
// none of the group's panics.
func (g *Group) Host(rank int) string { return g.members[rank].Host }

// Name is "world", or what Sub made of it.
func (g *Group) Name() string { return g.o.Name }

// Err is why the group failed, a *DeadError, or ErrClosed where this rank has closed it
// before that; nil while it lives.
func (g *Group) Err() error {
	if e := g.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// Done is closed when the group has failed, or this rank has closed it.
func (g *Group) Done() <-chan struct{} { return g.dead }

// fail ends the group for every rank. It returns the error that all ranks agree
// on, which has another cause than err where something else failed before.
func (g *Group) fail(err error) error {
	if e := g.Err(); e != nil {
		return e
	}
	if e, ok := errors.AsType[*transport.MismatchError](err); ok {
		err = g.sharpen(e)
	}
	return g.die(g.alarm.raise(err))
}

// sharpen names the call in which the ranks parted: the peer's message may have
// been found by a later one.
func (g *Group) sharpen(e *transport.MismatchError) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.Rank != g.o.Rank || e.Theirs.Kind == transport.Send || e.Theirs.Seq == e.Mine.Seq {
		return e
	}
	if mine := g.history.collective(e.Theirs.Seq); mine != nil && mine.Header != e.Theirs {
		return &transport.MismatchError{Rank: e.Rank, Peer: e.Peer, Mine: mine.Header, Theirs: e.Theirs}
	}
	return e
}

// die ends the group on this rank, for a reason that the ranks have agreed on.
func (g *Group) die(reason error) error {
	var err error = &DeadError{Group: g.o.Name, Rank: g.o.Rank, Size: g.o.Size, Host: g.o.Host, Err: reason}
	if !g.failed.CompareAndSwap(nil, &err) {
		return g.Err()
	}
	close(g.dead)
	g.engine.abort(err)
	g.o.Logger.Debug("comm: group failed", "group", g.o.Name, "rank", g.o.Rank, "err", reason)
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := g.oldest; s != nil; s = s.next {
		if !s.started { // the running call ends by itself
			s.work.finish(Result{Err: err})
		}
	}
	return err
}

// Abort ends the group on every rank: running and later calls fail with a *DeadError
// that says err, which the other ranks see as text, and so do the streams that they are
// on. On a group that has failed or was closed it does nothing. It belongs wherever a
// rank gives up, so that the others learn why instead of waiting.
func (g *Group) Abort(err error) {
	if err == nil {
		err = errors.New("no reason given")
	}
	g.fail(&AbortError{Rank: g.o.Rank, Host: g.o.Host, Err: err})
}

// Close waits until the enqueued calls have ended, which their deadlines bound,
// and ends this rank's part in the group. Other ranks may go on with calls that
// need nothing from this one. Groups made by Sub are closed on their own. It
// returns why the group has failed, if it had; a second Close returns the same.
func (g *Group) Close() error {
	g.closing.Do(func() {
		for _, w := range g.latest() {
			<-w.Done()
		}
		g.report()
		g.alarm.stop()
		closed := ErrClosed
		if g.failed.CompareAndSwap(nil, &closed) {
			close(g.dead)
			g.alarm.leave()
		} else {
			g.closed = g.Err()
		}
		if g.gpu != nil {
			g.closed = errors.Join(g.closed, g.gpu.close())
		}
		g.closed = errors.Join(g.closed, g.engine.close(), g.o.release())
	})
	return g.closed
}

// latest returns the Works that end last of those enqueued.
func (g *Group) latest() (works []*Work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil {
		works = append(works, g.last.work)
	}
	if g.gpu != nil && len(g.gpu.flights) > 0 {
		works = append(works, g.gpu.flights[len(g.gpu.flights)-1].work)
	}
	return works
}
