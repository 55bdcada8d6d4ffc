package verbs

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

func (l *library) newChannel(c Context) (Channel, error) {
	p, err := l.object("ibv_create_comp_channel", l.createChannel, c.Handle)
	if err != nil {
		return Channel{}, err
	}
	ch := Channel{p, int(at[int32](p, channelFD))}
	return ch, os.NewSyscallError("fcntl", syscall.SetNonblock(ch.FD, true))
}

// pollAtOnce is the most completions that one call takes.
const pollAtOnce = 16

func (l *library) newCQ(c Context, n int, ch Channel) (*CQ, error) {
	p, err := l.object("ibv_create_cq", l.createCQ, c.Handle, uintptr(n), 0, ch.Handle, 0)
	if err != nil {
		return nil, err
	}
	q := &CQ{Handle: p, raw: memory(pollAtOnce * sizeCompletion)}
	q.poll = call{dl.Proc(at[uintptr](c.Handle, opPoll)), []uintptr{p, 0, address(q.raw)}}
	q.notify = call{dl.Proc(at[uintptr](c.Handle, opNotify)), []uintptr{p, 0}}
	return q, nil
}

func (l *library) newQP(pd PD, cq *CQ, cap Capacity) (*QP, error) {
	b := memory(sizeRoom)
	encodeInit(b, cq, cap)
	p, err := l.object("ibv_create_qp", l.createQP, uintptr(pd), address(b))
	runtime.KeepAlive(b)
	if err != nil {
		return nil, err
	}
	q := &QP{Handle: p, Num: at[uint32](p, qpNum), raw: memory(rawSize)}
	context, bad := at[uintptr](p, 0), address(q.raw[rawBad:])
	q.send = call{dl.Proc(at[uintptr](context, opPostSend)), []uintptr{p, address(q.raw[rawRequest:]), bad}}
	q.recv = call{dl.Proc(at[uintptr](context, opPostRecv)), []uintptr{p, address(q.raw[rawRecv:]), bad}}
	return q, nil
}

func (l *library) modify(q *QP, a *Attr, to Mask) error {
	b := memory(sizeRoom)
	encodeAttr(b, a, to)
	err := l.code("ibv_modify_qp", l.modifyQP, q.Handle, address(b), uintptr(to))
	runtime.KeepAlive(b)
	return err
}

func postSend(q *QP, s *Send) error {
	encodeSend(q.raw, s)
	if rc := q.send.do(); rc != 0 {
		return os.NewSyscallError("ibv_post_send", syscall.Errno(max(rc, -rc)))
	}
	return nil
}

func postRecv(q *QP, id uint64) error {
	le.PutUint64(q.raw[rawRecv:], id)
	if rc := q.recv.do(); rc != 0 {
		return os.NewSyscallError("ibv_post_recv", syscall.Errno(max(rc, -rc)))
	}
	return nil
}

func poll(q *CQ, into []Completion) (int, error) {
	q.poll.args[1] = uintptr(min(len(into), pollAtOnce))
	n := q.poll.do()
	if n < 0 {
		return 0, os.NewSyscallError("ibv_poll_cq", syscall.Errno(-n))
	}
	for i := range n {
		into[i] = decodeCompletion(q.raw[i*sizeCompletion:])
	}
	return n, nil
}

func notify(q *CQ) error {
	if rc := q.notify.do(); rc != 0 {
		return os.NewSyscallError("ibv_req_notify_cq", syscall.Errno(max(rc, -rc)))
	}
	return nil
}

func (l *library) cqEvent(ch Channel, q *CQ) (bool, error) {
	var cq, own uintptr
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc := int32(l.getCQEvent.Call(ch.Handle, uintptr(unsafe.Pointer(&cq)), uintptr(unsafe.Pointer(&own)))); rc != 0 {
		if err := l.lastError(); err != syscall.EAGAIN {
			return false, os.NewSyscallError("ibv_get_cq_event", err)
		}
		return false, nil
	}
	l.ackCQEvents.Call(q.Handle, 1)
	return true, nil
}

func (l *library) asyncEvent(c Context) (Event, bool, error) {
	b := memory(sizeEvent)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc := int32(l.getAsyncEvent.Call(c.Handle, address(b))); rc != 0 {
		if err := l.lastError(); err != syscall.EAGAIN {
			return 0, false, os.NewSyscallError("ibv_get_async_event", err)
		}
		return 0, false, nil
	}
	l.ackAsyncEvent.Call(address(b))
	return Event(le.Uint32(b[8:])), true, nil
}
