package comm

import (
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// routineProxy carries out the host's part of calls, in their order, until one fails. One
// per engine, started by joinGPUDirect, ended by end or the error of a call.
func (e *gpuDirect) routineProxy() {
	defer close(e.stopped)
	err := e.routes.each(e.stop, func(j *journey) error {
		if err := e.carry(j); err != nil {
			return e.explain(j.call, e.link(), err)
		}
		return nil
	})
	if err != nil {
		e.fail(err)
	}
}

// travel is how far routineProxy is with a call's messages: those below each number are
// posted, or done. What this rank neither sends nor receives is done at once.
type travel struct {
	*journey
	call         transport.Call
	posted, sent int
	wanted, here int
}

// carry carries out a call, whose time begins when the stream has got to it.
func (e *gpuDirect) carry(j *journey) error {
	if err := e.await(wordBegun, j.number(0)); err != nil {
		return err
	}
	start := time.Now()
	t := &travel{journey: j, call: transport.Call{Header: j.wire, Deadline: start.Add(e.timeout())}}
	e.waitsFor(t, 1)
	look := gaze{since: start}
	for t.sent < t.messages || t.here < t.messages {
		if err := e.post(t); err != nil {
			return err
		}
		if err := e.mesh.Step(&t.call, start); err != nil {
			return err
		}
		moved, err := e.take(t)
		if err != nil {
			return err
		}
		if moved {
			look.changed()
		} else if !look.again(e.stop) {
			return errEnded
		}
	}
	return nil
}

// post posts receives for the slots that are free, and sends of those that the stream has
// filled. Messages without data are there for the headers, and need no slot.
func (e *gpuDirect) post(t *travel) error {
	for ; t.wanted < t.messages; t.wanted++ {
		from, n := t.recv(t.wanted)
		number := t.number(t.wanted)
		at := e.at(number)
		slot := &e.inSlot[number%directSlots]
		if from == none {
			continue
		}
		if !e.reached(wordTaken, *slot) {
			break
		}
		var err error
		if n == 0 {
			err = e.mesh.PostRecv(&t.call, from, nil)
		} else {
			err = e.mesh.PostRecvGPU(&t.call, from, e.known, at, at+n)
		}
		if err != nil {
			return err
		}
		*slot = number
	}
	for ; t.posted < t.messages; t.posted++ {
		to, n := t.send(t.posted)
		number := t.number(t.posted)
		if to == none {
			continue
		}
		if !e.reached(wordReady, number) {
			break
		}
		var err error
		if at := e.at(number) + directSlots*directSlot; n == 0 {
			err = e.mesh.PostSend(&t.call, to, nil)
		} else {
			err = e.mesh.PostSendGPU(&t.call, to, e.known, at, at+n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take tells the stream which messages have arrived, and which have gone.
func (e *gpuDirect) take(t *travel) (moved bool, err error) {
	sent, here, fresh := t.sent, t.here, false
	for ; t.sent < t.posted; t.sent++ {
		if to, _ := t.send(t.sent); to != none && !e.mesh.Sent(to) {
			break
		}
	}
	for ; t.here < t.wanted; t.here++ {
		from, n := t.recv(t.here)
		if from == none {
			continue
		}
		if !e.mesh.Received(from) {
			break
		}
		fresh = fresh || n > 0
	}
	if fresh && e.flush != nil {
		if err := e.flush(); err != nil {
			return false, err
		}
	}
	if t.here > here {
		e.set(wordHere, t.number(t.here-1))
		e.waitsFor(t, t.here-here)
	}
	if t.sent > sent {
		e.set(wordSent, t.number(t.sent-1))
	}
	return t.sent > sent || t.here > here, nil
}

// waitsFor notes from whom the next message comes, and so many more that have come.
func (e *gpuDirect) waitsFor(t *travel, more int) {
	for i := t.here; i < t.messages; i++ {
		if from, _ := t.recv(i); from != none {
			e.seen.waits(t.call.Header, from, more)
			return
		}
	}
}
