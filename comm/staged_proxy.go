package comm

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// put hands a call to routineProxy.
func (e *staged) put(p *passage) {
	e.mu.Lock()
	e.passages = append(e.passages, p)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// next is the oldest call that routineProxy has not had, nil where there is none.
func (e *staged) next() *passage {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.passages) == 0 {
		return nil
	}
	p := e.passages[0]
	e.passages[0] = nil
	e.passages = e.passages[1:]
	return p
}

// routineProxy carries out the host's part of calls, in their order, until one fails. One
// per engine, started by joinStaged, ended by end or the error of a call.
func (e *staged) routineProxy() {
	defer close(e.stopped)
	for {
		if p := e.next(); p != nil {
			if err := e.carry(p); err != nil {
				e.fail(e.explain(p.call, err))
				return
			}
			continue
		}
		select {
		case <-e.wake:
		case <-e.stop:
			return
		}
	}
}

// carry carries out a call, whose time begins when the stream has got to it. It ends with
// the last piece of any rank.
func (e *staged) carry(p *passage) error {
	var deadline time.Time
	pieces := p.pieces
	for i := 0; i < pieces; i++ {
		if i < p.pieces {
			if err := e.await(p.number(i)); err != nil {
				return err
			}
		}
		if i == 0 {
			deadline = time.Now().Add(e.timeout())
			var err error
			if pieces, err = e.open(p, deadline); err != nil {
				return err
			}
		}
		s := p.step(i, e.slot(p.number(i)))
		s.Deadline = deadline
		if err := e.over.run(&s); err != nil {
			return err
		}
		if i < p.pieces-1 {
			atomic.StoreUint32(e.word(wordMoved), p.number(i))
		}
	}
	atomic.StoreUint32(e.word(wordMoved), p.number(p.pieces-1))
	return nil
}

func (e *staged) timeout() time.Duration {
	e.g.mu.Lock()
	defer e.g.mu.Unlock()
	return e.g.o.Timeout
}

// open is what ranks do before the first piece of a call. It returns how many there are:
// of an AllToAllV ranks know only of those that they have something in.
func (e *staged) open(p *passage, deadline time.Time) (pieces int, err error) {
	if over, ok := e.over.(*shared); ok { // which compares pieces; an error names calls
		if err := over.team.Barrier(transport.Call{Header: p.call.wire, Deadline: deadline}); err != nil {
			return 0, err
		}
	}
	if p.call.sendCounts == nil {
		return p.pieces, nil
	}
	most := []int64{int64(p.pieces)}
	s := p.call.step(transport.AllReduce, 1, device.Of(most).Bytes())
	s.DType, s.Op, s.sendCounts, s.recvCounts, s.Deadline = dtype.I64, Max, nil, nil, deadline
	err = e.over.run(&s)
	return int(most[0]), err
}

// explain makes a timeout one of a call on the GPU.
func (e *staged) explain(c *call, err error) error {
	late, ok := errors.AsType[*transport.TimeoutError](err)
	if !ok {
		return err
	}
	return &StuckError{TimeoutError: transport.TimeoutError{Peer: late.Peer, Call: c.wire, Wait: late.Wait},
		Rank: e.g.o.Rank, GPU: e.dev.String(), Link: e.link()}
}

var errEnded = errors.New("the group's engine for memory of GPUs has ended")

const (
	// spin is how long await looks at the word without a pause.
	spin = 50 * time.Microsecond
	// glance is the longest pause between two looks.
	glance = 200 * time.Microsecond
)

// await waits until the stream has put a piece into its slot. No time bounds that: the
// work before the call may take as long as it likes.
func (e *staged) await(piece uint32) error {
	var pause time.Duration
	for began := time.Now(); int32(atomic.LoadUint32(e.word(wordStaged))-piece) < 0; {
		if time.Since(began) < spin {
			runtime.Gosched()
			continue
		}
		pause = min(max(2*pause, spin/2), glance)
		select {
		case <-time.After(pause):
		case <-e.stop:
			return errEnded
		}
	}
	return nil
}
