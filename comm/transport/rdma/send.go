package rdma

import (
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// signalEvery is how many writes of a queue pair go out for one that completes
// visibly.
const signalEvery = 16

// advance sends p what can be sent now: what peers grant, and messages in their order.
//
// A record that begins a message may have to lie in its slot until the receive is
// posted, and keeps those behind it waiting. So none goes out while data of an earlier
// message may still have to come in records. Announcements wait elsewhere.
func (m *Mesh) advance(p *peer) error {
	if p.broken != nil {
		return nil
	}
	undecided := false
	for n := p.directs.first; n < p.directs.end(); n++ {
		msg := *p.directs.at(n)
		switch {
		case msg.finished:
		case !msg.granted:
			undecided = true
		case msg.at.addr != 0:
			if err := m.pushStripes(p, n, msg); err != nil {
				return err
			}
		case msg.data == nil:
			return m.lost(p, fmt.Errorf("%w: it receives %d bytes of %s there, from a GPU's memory", ErrUnregistered, msg.size, msg.header))
		default:
			if all, err := m.pushRecords(p, msg); !all {
				return err
			}
		}
	}
	for len(p.directs.items) > 0 && (*p.directs.at(p.directs.first)).finished {
		p.directs.pop()
	}
	for p.next < p.sends.end() {
		msg := *p.sends.at(p.next)
		if msg.direct {
			if len(p.directs.items) == grants {
				return nil
			}
			sent, err := m.sendRecord(p, record{kind: recAnnounce, message: p.next, size: uint64(msg.size), header: msg.header}, nil)
			if !sent {
				return err
			}
			msg.number, msg.begun = p.next, true
			p.directs.push(msg)
			undecided = true
		} else {
			if undecided {
				return nil
			}
			msg.number = p.next
			if all, err := m.pushRecords(p, msg); !all {
				return err
			}
		}
		p.next++
	}
	return nil
}

// pushRecords sends a message's data in records, as far as there are slots.
func (m *Mesh) pushRecords(p *peer, msg *outgoing) (all bool, err error) {
	for !msg.begun || msg.pushed < len(msg.data) {
		r := record{kind: recData, message: msg.number, size: uint64(msg.pushed)}
		if !msg.begun {
			r.kind, r.size, r.header = recMessage, uint64(len(msg.data)), msg.header
		}
		rest := msg.data[msg.pushed:]
		part := rest[:min(len(rest), m.slotSize-headSize)]
		sent, err := m.sendRecord(p, r, part)
		if !sent {
			return false, err
		}
		msg.begun = true
		msg.pushed += len(part)
	}
	if !msg.finished {
		msg.finished = true
		m.o.Traffic.Sent.Add(int64(len(msg.data)))
	}
	return true, nil
}

// sendRecord writes a record to the next slot. It is not sent while there is no slot,
// or no room in the queue.
func (m *Mesh) sendRecord(p *peer, r record, data []byte) (sent bool, err error) {
	q := &p.qps[p.records%uint64(len(p.qps))]
	if p.records-p.freed == slots || q.room() <= sendReserve {
		return false, nil
	}
	at := int(p.records%slots) * m.slotSize
	slot := p.outSlots[at : at+m.slotSize]
	r.bytes = uint32(len(data))
	r.encode(slot)
	copy(slot[headSize:], data)
	w := verbs.Send{Op: verbs.WriteImm, Imm: immediate(immRecord, p.records), Local: addressOf(slot), LKey: m.region.LKey,
		Bytes: headSize + len(data), Remote: p.slotsAt + uint64(at), RKey: p.rkey}
	p.records++
	return true, m.write(p, q, &w, signal{}, false)
}

// stripes is the number of parts in which n bytes are written to registered memory.
func (m *Mesh) stripes(n int) int { return max(1, min(m.s.QPs, n/stripeLeast)) }

// stripe is the range of part i.
func (m *Mesh) stripe(n, i int) (lo, hi int) {
	parts := m.stripes(n)
	each := ((n+parts-1)/parts + 63) &^ 63
	return min(i*each, n), min((i+1)*each, n)
}

// pushStripes writes a message to the memory that its receiver has granted, as far as
// there is room in the queues. Announcement n is the message's.
func (m *Mesh) pushStripes(p *peer, n uint64, msg *outgoing) error {
	size := msg.size
	if msg.stripes == nil {
		msg.stripes, msg.open = make([]int, m.stripes(size)), m.stripes(size)
		for i := range msg.stripes {
			msg.stripes[i], _ = m.stripe(size, i)
		}
	}
	for i := range msg.stripes {
		q := &p.qps[i]
		_, end := m.stripe(size, i)
		for msg.stripes[i] < end && q.room() > sendReserve {
			at := msg.stripes[i]
			k := min(end-at, p.most)
			w := verbs.Send{Op: verbs.Write, Local: msg.addr + uintptr(at), LKey: msg.lkey, Bytes: k, Remote: msg.at.addr + uint64(at), RKey: msg.at.rkey}
			var s signal
			if at+k == end {
				w.Op, w.Imm = verbs.WriteImm, immediate(immDone, n)
				s.stripe = msg
			}
			msg.stripes[i] += k
			if err := m.write(p, q, &w, s, s.stripe != nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// room is how many more writes the queue takes.
func (q *queue) room() int { return sendDepth - int(q.posted-q.completed) }

// write posts a write. visible asks for its completion, as some are anyway.
func (m *Mesh) write(p *peer, q *queue, w *verbs.Send, s signal, visible bool) error {
	q.posted++
	q.silent++
	w.ID, w.Signaled = q.id, visible || q.silent == signalEvery
	if w.Signaled {
		q.silent = 0
		s.number, s.at = q.posted, time.Now()
		q.signals.push(s)
	}
	if err := m.api.PostSend(q.qp, w); err != nil {
		return m.lost(p, fmt.Errorf("posting a write of %d bytes, with %d under way: %w", w.Bytes, q.posted-q.completed-1, err))
	}
	return nil
}

// completed notes that the oldest visible write of q has ended, and all before it.
func (m *Mesh) complete(q *queue) {
	s := *q.signals.at(q.signals.first)
	q.signals.pop()
	q.completed = s.number
	if s.probe {
		q.probing = false
	}
	if msg := s.stripe; msg != nil {
		if msg.open--; msg.open == 0 {
			msg.finished = true
			m.o.Traffic.Sent.Add(int64(msg.size))
		}
	}
}
