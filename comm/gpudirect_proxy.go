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

// carry carries out a call, whose time begins when the stream has got to it. Then nothing of
// calls before is in a slot any more.
func (e *gpuDirect) carry(j *journey) error {
	if err := e.await(wordDone, j.number(front)); err != nil {
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
	e.set(wordGo, t.number(t.places())) // in front of the next call
	return nil
}

// post posts receives for the slots that are free, and sends of those that the stream has
// filled. Messages without data are there for the headers, and need no slot.
func (e *gpuDirect) post(t *travel) (err error) {
	for ; t.wanted < t.messages && e.free(t, t.wanted); t.wanted++ {
		from, n := t.recv(t.wanted)
		switch at := e.inAt(t.wanted); {
		case from == none:
		case n == 0:
			err = e.mesh.PostRecv(&t.call, from, nil)
		default:
			err = e.mesh.PostRecvGPU(&t.call, from, e.known, at, at+n)
		}
		if err != nil {
			return err
		}
	}
	for ; t.posted < t.messages; t.posted++ {
		to, n := t.send(t.posted)
		if to != none && !e.reached(wordDone, t.number(t.posted)) {
			return nil
		}
		switch at := e.outAt(t.posted); {
		case to == none:
		case n == 0:
			err = e.mesh.PostSend(&t.call, to, nil)
		default:
			err = e.mesh.PostSendGPU(&t.call, to, e.known, at, at+n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// free says whether the stream has taken what came before a message into its slot.
func (e *gpuDirect) free(t *travel, message int) bool {
	before := message - directSlots
	from, _ := t.recv(before)
	return from == none || e.reached(wordDone, t.number(before+t.window))
}

// take sees which messages have arrived, and which have gone, and lets the stream go on as
// far as these allow: at its next place it takes in the one, and fills the slot of the other.
func (e *gpuDirect) take(t *travel) (moved bool, err error) {
	sent, here, fresh := t.sent, t.here, false
	for ; t.sent < t.posted; t.sent++ {
		if to, _ := t.send(t.sent); to != none && !e.mesh.Sent(to) {
			break
		}
	}
	for ; t.here < t.wanted; t.here++ {
		from, n := t.recv(t.here)
		if from != none && !e.mesh.Received(from) {
			break
		}
		fresh = fresh || from != none && n > 0
	}
	if fresh && e.flush != nil {
		if err := e.flush(); err != nil {
			return false, err
		}
	}
	if t.here > here {
		e.waitsFor(t, t.here-here)
	}
	moved = t.here > here || t.sent > sent
	if moved {
		e.set(wordGo, t.number(min(t.here+t.window, t.sent+directSlots)-1))
	}
	return moved, nil
}

// waitsFor notes from whom the next message comes, and that so many more have come.
func (e *gpuDirect) waitsFor(t *travel, more int) {
	for i := t.here; i < t.messages; i++ {
		if from, _ := t.recv(i); from != none {
			e.seen.waits(t.call.Header, from, more)
			return
		}
	}
}
