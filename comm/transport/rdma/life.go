package rdma

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

var (
	// errLeft is inside the PeerError for a rank that closed the group too early.
	errLeft = errors.New("it has closed the group")
	// errSilent is inside the PeerError for a write whose completion never came.
	errSilent = errors.New("a completion is lost")
)

// goodbyeWithin bounds what Close does for its peers.
const goodbyeWithin = 2 * time.Second

// portWithin is how long a port may be down: a cable that is plugged in again, a
// switch that starts anew.
const portWithin = 8 * time.Second

// failure is how a write to a peer ended.
type failure struct {
	status verbs.Status
	vendor uint32
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s (completion status %d, vendor's code %d)", f.status, uint32(f.status), f.vendor)
}

// parted ends the mesh because a write to p has failed, unless p has said goodbye
// and nothing is to go there.
func (m *Mesh) parted(p *peer) error {
	for n := range uint64(slots) {
		at := (p.taken + n) % slots
		if p.arrived[at] && p.inSlots[int(at)*m.slotSize] == recGoodbye {
			p.left = true
		}
	}
	if p.left {
		return nil // who waits for it learns that it has left
	}
	return m.lost(p, p.broken)
}

// lost ends the mesh because of p. The error names both ends.
func (m *Mesh) lost(p *peer, err error) error {
	m.mu.Lock()
	down := m.down
	m.mu.Unlock()
	if !down.IsZero() {
		err = fmt.Errorf("%w; this end's port went down %s ago", err, time.Since(down).Round(time.Millisecond))
	}
	return m.end(&transport.PeerError{Peer: p.rank, Host: p.host,
		Err: fmt.Errorf("over RDMA, rank %d on %s, %s, to %s: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, p.device, err)})
}

// end fails the mesh from within a call, which returns the error.
func (m *Mesh) end(err error) error {
	m.fail(err)
	return err
}

// fail ends all waits with err. Only the first call counts, and none after Close.
func (m *Mesh) fail(err error) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.over = true
	m.err = err
	close(m.failed)
	return true
}

func (m *Mesh) cause() error {
	select {
	case <-m.failed:
		return m.err
	default:
	}
	if m.closing.Load() {
		return errClosed
	}
	return nil
}

// Abort ends all waits with err.
func (m *Mesh) Abort(err error) {
	m.fail(err)
	m.kick()
}

// Close says goodbye to all peers, and releases everything: afterwards no posted
// memory is touched, by this rank or by others. After a failure there is no goodbye.
func (m *Mesh) Close() error {
	m.closing.Store(true)
	m.kick()
	m.use.Lock()
	defer m.use.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	close(m.quit)
	select {
	case <-m.failed:
	default:
		m.farewell()
	}
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	m.listenUntil(time.Time{}) // ends routineEvents
	m.routines.Wait()
	return m.release()
}

// farewell sends each peer a goodbye behind all else, and waits until what was sent
// has arrived.
func (m *Mesh) farewell() {
	said := make([]bool, len(m.peers))
	until := time.Now().Add(goodbyeWithin)
	for time.Now().Before(until) {
		if err := m.progress(); err != nil {
			m.o.Logger.Debug("rdma: no goodbye", "rank", m.o.Rank, "err", err)
			return
		}
		open := 0
		for r := range m.peers {
			p := &m.peers[r]
			if r == m.o.Rank || p.broken != nil || p.left {
				continue
			}
			if !said[r] && !p.probed() { // a probe under way may be from before
				sent, err := m.sendRecord(p, record{kind: recGoodbye}, nil)
				if err == nil && sent {
					err = m.probe(p) // whose end is that of all before it
				}
				if err != nil {
					m.o.Logger.Debug("rdma: no goodbye", "rank", m.o.Rank, "err", err)
					return
				}
				said[r] = sent
			}
			for i := range p.qps {
				if !said[r] || p.qps[i].completed < p.qps[i].posted {
					open++
				}
			}
		}
		if open == 0 {
			return
		}
		if err := m.sleep(time.Now().Add(10 * time.Millisecond)); err != nil {
			return
		}
	}
}

// routineEvents reads what the device reports of itself. One per mesh, started by
// Join; ends when Close wakes it.
func (m *Mesh) routineEvents() {
	defer m.routines.Done()
	conn, err := m.events.SyscallConn()
	for err == nil && !m.closing.Load() {
		var e verbs.Event
		var failed error
		err = conn.Read(func(uintptr) bool {
			var got bool
			e, got, failed = m.api.AsyncEvent(m.device)
			return got || failed != nil
		})
		switch {
		case failed != nil:
			err = failed
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = nil
			m.portDown()
		case err == nil:
			m.event(e)
		}
	}
	if err != nil {
		m.broke(fmt.Errorf("listening to the device: %w", err))
	}
}

// event acts on what the device reports.
func (m *Mesh) event(e verbs.Event) {
	m.o.Logger.Debug("rdma: event", "rank", m.o.Rank, "port", m.port.String(), "event", e.String())
	if e.Fatal() {
		m.broke(errors.New(e.String()))
		return
	}
	switch e {
	case verbs.PortDown:
		m.o.Logger.Warn("rdma: the port has gone down", "rank", m.o.Rank, "host", m.o.Hosts[m.o.Rank], "port", m.port.String(), "waits", portWithin)
		m.setDown(time.Now())
	case verbs.PortUp:
		m.setDown(time.Time{})
	case verbs.GIDChange:
		m.o.Logger.Warn("rdma: the table of addresses has changed; the connections keep theirs", "rank", m.o.Rank, "host", m.o.Hosts[m.o.Rank], "port", m.port.String())
	}
}

// setDown notes since when the port is down, and when to give up.
func (m *Mesh) setDown(since time.Time) {
	m.mu.Lock()
	m.down = since
	m.mu.Unlock()
	until := time.Time{}
	if !since.IsZero() {
		until = since.Add(portWithin)
	}
	m.listenUntil(until)
}

// listenUntil wakes routineEvents at that time, and at once when the mesh closes.
func (m *Mesh) listenUntil(t time.Time) {
	_ = m.events.SetReadDeadline(t) // fails on a closed file alone
	if m.closing.Load() {
		_ = m.events.SetReadDeadline(time.Unix(1, 0))
	}
}

// portDown fails the mesh if the port has been down for too long.
func (m *Mesh) portDown() {
	m.mu.Lock()
	down := m.down
	m.mu.Unlock()
	if !down.IsZero() {
		m.broke(fmt.Errorf("its port has been down for %s: look at the cable, the switch, and `ip link show %s`", time.Since(down).Round(time.Second), netdev(m.port.GID)))
	}
	m.listenUntil(time.Time{})
}

// broke fails the mesh because of this rank's own device.
func (m *Mesh) broke(err error) {
	err = fmt.Errorf("rdma: rank %d on %s, %s: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, err)
	if m.fail(err) {
		m.tell(err)
	}
}

// tell ends the waits of a mesh that has failed outside of any call, and tells its owner.
func (m *Mesh) tell(err error) {
	m.kick()
	if m.o.Lost != nil {
		m.told.Do(func() { m.o.Lost(err) })
	}
}
