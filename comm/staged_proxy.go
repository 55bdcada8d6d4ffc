package comm

import (
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// routineProxy carries out the host's part of calls, in their order, until one fails. One
// per engine, started by joinStaged, ended by end or the error of a call.
func (e *staged) routineProxy() {
	defer close(e.stopped)
	err := e.passages.each(e.stop, func(p *passage) error {
		if err := e.carry(p); err != nil {
			return e.explain(p.call, e.link(), err)
		}
		return nil
	})
	if err != nil {
		e.fail(err)
	}
}

// carry carries out a call, whose time begins when the stream has got to it. It ends with
// the last piece of any rank.
func (e *staged) carry(p *passage) error {
	var deadline time.Time
	pieces := p.pieces
	for i := 0; i < pieces; i++ {
		if i < p.pieces {
			if err := e.await(wordStaged, p.number(i)); err != nil {
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
			e.set(wordMoved, p.number(i))
		}
	}
	e.set(wordMoved, p.number(p.pieces-1))
	return nil
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
