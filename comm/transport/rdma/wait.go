package rdma

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

const (
	// spinFor is how long a wait polls before it sleeps. Waking up costs tens of
	// microseconds.
	spinFor = 50 * time.Microsecond
	// probeEvery is how often a peer that is waited for is written to.
	probeEvery = time.Second
)

// await moves messages along until done, which is one of p's.
func (m *Mesh) await(c *transport.Call, p *peer, done *bool) error {
	if *done {
		return nil
	}
	if m.closed {
		return errClosed
	}
	start := time.Now()
	p.asked = start
	for {
		if err := m.progress(); err != nil {
			return err
		}
		if *done {
			return nil
		}
		if err := m.cause(); err != nil {
			return err
		}
		now := time.Now()
		if now.Sub(start) < spinFor {
			runtime.Gosched()
			continue
		}
		if err := m.patient(c, p, start, now); err != nil {
			return err
		}
		until := p.asked.Add(probeEvery)
		if c.Deadline.Before(until) {
			until = c.Deadline
		}
		if err := m.sleep(until); err != nil {
			return err
		}
	}
}

// patient is the end of patience with p, for which c has waited since start: it has left,
// it is late, or it does not answer when it is probed.
func (m *Mesh) patient(c *transport.Call, p *peer, start, now time.Time) error {
	if p.left || p.broken != nil { // what it has sent before is here, on all queue pairs
		return m.end(&transport.PeerError{Peer: p.rank, Host: p.host, Err: fmt.Errorf("%w, and %s is not done", errLeft, c.Header)})
	}
	if !now.Before(c.Deadline) {
		return m.end(&transport.TimeoutError{Peer: p.rank, Call: c.Header, Wait: now.Sub(start)})
	}
	if now.Sub(p.asked) < probeEvery {
		return nil
	}
	if err := m.overdue(now); err != nil {
		return err
	}
	p.asked = now
	return m.probe(p)
}

// progress takes all completions that are there, and moves on what they allow.
func (m *Mesh) progress() error {
	for {
		n, err := m.api.Poll(m.cq, m.done[:])
		if err != nil {
			return m.end(fmt.Errorf("rdma: rank %d on %s, %s: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, err))
		}
		for _, c := range m.done[:n] {
			if err := m.handle(c); err != nil {
				return err
			}
		}
		if n == 0 {
			break
		}
	}
	for r := range m.peers {
		p := &m.peers[r]
		if !p.touched {
			continue
		}
		p.touched = false
		if err := m.receive(p); err != nil {
			return err
		}
		if p.broken != nil {
			if err := m.parted(p); err != nil {
				return err
			}
			continue
		}
		if err := m.advance(p); err != nil {
			return err
		}
	}
	return nil
}

// handle notes one completion.
func (m *Mesh) handle(c verbs.Completion) error {
	if c.ID == idFlush {
		m.loop.under = false
		if c.Status != verbs.Success {
			m.loop.failed = &failure{c.Status, c.Vendor}
		}
		return nil
	}
	p, q, recv := m.of(c.ID)
	p.touched = true
	switch {
	case c.Status != verbs.Success:
		// The first failure says why; it takes all that is under way along.
		if p.broken == nil || p.broken.status == verbs.Flushed {
			p.broken = &failure{c.Status, c.Vendor}
		}
	case recv:
		if err := m.arrive(p, c.Imm); err != nil {
			return err
		}
		if err := m.api.PostRecv(q.qp, c.ID); err != nil {
			return m.lost(p, fmt.Errorf("posting a receive: %w", err))
		}
	default:
		m.complete(q)
	}
	return nil
}

// probe writes nothing to p, on every queue pair: a peer that has died does not
// acknowledge it.
func (m *Mesh) probe(p *peer) error {
	for i := range p.qps {
		q := &p.qps[i]
		if q.probing || p.broken != nil || q.room() == 0 {
			continue
		}
		q.probing = true
		w := verbs.Send{Op: verbs.Write, LKey: m.region.LKey, Remote: p.slotsAt, RKey: p.rkey}
		if err := m.write(p, q, &w, signal{probe: true}, true); err != nil {
			return err
		}
	}
	return nil
}

// overdue looks for a write whose end the device does not tell.
func (m *Mesh) overdue(now time.Time) error {
	for r := range m.peers {
		p := &m.peers[r]
		for i := range p.qps {
			q := &p.qps[i]
			if len(q.signals.items) == 0 || p.broken != nil {
				continue
			}
			if waited := now.Sub(q.signals.at(q.signals.first).at); waited > m.s.patience() {
				return m.lost(p, fmt.Errorf("%w: a write has neither ended nor failed for %s, longer than the device's %d tries of %s take. Either the peer is gone and this device goes on trying (soft-RoCE does where comm.ib_retries is 7), or packets are dropped before they leave (an interface whose MTU is smaller than %d bytes and headers), or the device hangs",
					errSilent, waited.Round(time.Second), m.s.Retries, m.s.once(), m.port.MTU.Bytes()))
			}
		}
	}
	return nil
}

// sleep waits for a completion, a kick, or the time.
func (m *Mesh) sleep(until time.Time) error {
	if err := m.api.Notify(m.cq); err != nil {
		return m.end(err)
	}
	// What came before the device was asked to notify gives no notice.
	n, err := m.api.Poll(m.cq, m.done[:])
	if err != nil {
		return m.end(err)
	}
	for _, c := range m.done[:n] {
		if err := m.handle(c); err != nil {
			return err
		}
	}
	if n > 0 {
		return nil
	}
	if err := m.wake.SetReadDeadline(until); err != nil {
		return m.end(err)
	}
	if m.kicked.Swap(false) {
		return nil
	}
	var failed error
	err = m.wakeConn.Read(func(uintptr) bool {
		got, err := m.api.CQEvent(m.channel, m.cq)
		failed = err
		return got || err != nil
	})
	if failed != nil {
		return m.end(failed)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return m.end(err)
	}
	return nil
}

// kick ends a sleep, or the next one.
func (m *Mesh) kick() {
	m.kicked.Store(true)
	if m.wake != nil {
		_ = m.wake.SetReadDeadline(time.Unix(1, 0)) // fails on a closed file alone, on which nobody sleeps
	}
}
