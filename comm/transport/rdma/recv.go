package rdma

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// receive takes the records of p that are there, answers its announcements, and gives
// it credit.
func (m *Mesh) receive(p *peer) error {
	if err := m.takeRecords(p); err != nil {
		return err
	}
	if p.broken != nil {
		return nil
	}
	if err := m.answer(p); err != nil {
		return err
	}
	if q := &p.qps[0]; p.taken-p.credited >= slots/4 && q.room() > 0 {
		p.credited = p.taken
		w := verbs.Send{Op: verbs.WriteImm, Imm: immediate(immCredit, p.taken), LKey: m.region.LKey, Remote: p.slotsAt, RKey: p.rkey}
		return m.write(p, q, &w, signal{}, false)
	}
	return nil
}

// takeRecords empties p's slots in the order of the records, up to one whose receive
// is not posted.
func (m *Mesh) takeRecords(p *peer) error {
	for p.arrived[p.taken%slots] {
		slot := p.inSlots[int(p.taken%slots)*m.slotSize:][:m.slotSize]
		r := decodeRecord(slot)
		switch r.kind {
		case recGoodbye:
			p.left = true
		case recAnnounce:
			p.announced.push(r)
		case recMessage, recData:
			ok, err := m.takeData(p, r, slot[headSize:])
			if !ok {
				return err
			}
		default:
			return m.lost(p, fmt.Errorf("a record of kind %d: its version differs", r.kind))
		}
		p.arrived[p.taken%slots] = false
		p.taken++
	}
	return nil
}

// takeData copies a record's data to its receive. false: there is none yet.
func (m *Mesh) takeData(p *peer, r record, data []byte) (bool, error) {
	w, err := m.match(p, r)
	if w == nil {
		return false, err
	}
	if w.gpu != nil && w.size > 0 {
		return false, m.lost(p, fmt.Errorf("%w: it sends %d bytes of %s from there, which go to a GPU's memory", ErrUnregistered, w.size, w.header))
	}
	at := uint64(0)
	if r.kind == recData {
		at = r.size
	}
	if int(r.bytes) > len(data) || at+uint64(r.bytes) > uint64(w.size) {
		return false, m.lost(p, fmt.Errorf("a record with %d bytes at %d of a message of %d, in %s: its version differs", r.bytes, at, w.size, w.header))
	}
	w.got += copy(w.data[at:], data[:r.bytes])
	m.finish(p, w, w.got == w.size)
	return true, nil
}

func (m *Mesh) finish(p *peer, w *incoming, all bool) {
	if !all {
		return
	}
	w.finished = true
	m.o.Traffic.Received.Add(int64(w.size))
	for len(p.granted.items) > 0 && (*p.granted.at(p.granted.first)).finished {
		p.granted.pop()
	}
}

// match finds the receive of a record, nil while it is not posted, and compares the
// calls.
func (m *Mesh) match(p *peer, r record) (*incoming, error) {
	if r.message >= p.wants.end() {
		if m.o.Check == nil || p.checked > r.message {
			return nil, nil
		}
		p.checked = r.message + 1
		if err := m.o.Check(p.rank, r.header); err != nil {
			return nil, m.end(err)
		}
		return nil, nil
	}
	if r.message < p.wants.first {
		return nil, m.lost(p, fmt.Errorf("a record of message %d, which is complete: its version differs", r.message))
	}
	w := *p.wants.at(r.message)
	switch {
	case r.kind == recData:
	case r.header != w.header:
		return nil, m.end(&transport.MismatchError{Rank: m.o.Rank, Peer: p.rank, Mine: w.header, Theirs: r.header})
	case r.size != uint64(w.size):
		return nil, m.end(fmt.Errorf("%s sent %d bytes where %d are expected, in %s: its version differs", p, r.size, w.size, r.header))
	}
	return w, nil
}

// answer grants what p has announced and this rank has posted receives for.
func (m *Mesh) answer(p *peer) error {
	for len(p.announced.items) > 0 {
		n := p.announced.first
		w, err := m.match(p, *p.announced.at(n))
		if w == nil {
			return err
		}
		q := &p.qps[0]
		if q.room() == 0 {
			return nil
		}
		var g grant
		if w.gpu != nil {
			g = grant{uint64(w.addr), w.gpu.RKey}
		} else if r, ok := m.covers(w.data); ok {
			g = grant{uint64(w.addr), r.RKey}
		}
		at := int(n%grants) * grantSize
		b := p.outGrants[at : at+grantSize]
		g.encode(b)
		p.announced.pop()
		p.granted.push(w)
		send := verbs.Send{Op: verbs.WriteImm, Imm: immediate(immGrant, n), Local: addressOf(b), LKey: m.region.LKey, Bytes: grantSize,
			Remote: p.grantsAt + uint64(at), RKey: p.rkey}
		if err := m.write(p, q, &send, signal{}, false); err != nil {
			return err
		}
	}
	return nil
}

// arrive notes what a peer has written, as its immediate data tells.
func (m *Mesh) arrive(p *peer, imm uint32) error {
	v := imm & immMask
	switch imm >> immKindShift {
	case immRecord:
		n := after(p.taken, v)
		if n-p.taken >= slots {
			return m.lost(p, fmt.Errorf("record %d, while %d is expected: its version differs", n, p.taken))
		}
		p.arrived[n%slots] = true
	case immCredit:
		n := after(p.freed, v)
		if n > p.records {
			return m.lost(p, fmt.Errorf("credit for %d records, and %d were sent: its version differs", n, p.records))
		}
		p.freed = n
	case immGrant:
		n := after(p.directs.first, v)
		if n >= p.directs.end() {
			return m.lost(p, fmt.Errorf("a grant for announcement %d of %d: its version differs", n, p.directs.end()))
		}
		msg := *p.directs.at(n)
		msg.granted, msg.at = true, decodeGrant(p.inGrants[int(n%grants)*grantSize:])
	case immDone:
		n := after(p.granted.first, v)
		if n >= p.granted.end() {
			return m.lost(p, fmt.Errorf("data for announcement %d of %d: its version differs", n, p.granted.end()))
		}
		w := *p.granted.at(n)
		w.stripes++
		m.finish(p, w, w.stripes == m.stripes(w.size))
	}
	return nil
}
