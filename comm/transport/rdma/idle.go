package rdma

import (
	"slices"
	"time"
)

// idleEvery is how often a rank that has no call looks after its peers.
const idleEvery = 2 * time.Second

// routineIdle notices peers that die while this rank does not wait for them: nothing
// but a write that fails tells that the process at the other end is gone. One per mesh,
// started by Join; ends with the mesh's failure or its Close.
func (m *Mesh) routineIdle() {
	defer m.routines.Done()
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.failed:
			return
		case <-m.quit:
			return
		}
		if !m.use.TryLock() {
			continue // a call is at work, which probes those that it waits for
		}
		err := m.lookAfter(time.Now())
		m.use.Unlock()
		if err != nil {
			m.tell(err)
			return
		}
	}
}

// lookAfter takes what has become of the last probes, and probes all peers anew. Those
// that are alive acknowledge by their device alone, whatever their processes do.
func (m *Mesh) lookAfter(now time.Time) error {
	if m.cause() != nil {
		return nil // others tell, or nobody needs to
	}
	if err := m.progress(); err != nil {
		return err
	}
	if err := m.overdue(now); err != nil {
		return err
	}
	m.mu.Lock()
	down := !m.down.IsZero()
	m.mu.Unlock()
	if down {
		return nil // what is written now fails, and the port may come back
	}
	for r := range m.peers {
		p := &m.peers[r]
		if r == m.o.Rank || p.left || p.broken != nil {
			continue
		}
		if err := m.probe(p); err != nil {
			return err
		}
	}
	return nil
}

// probed says that a probe of p is under way.
func (p *peer) probed() bool {
	return slices.ContainsFunc(p.qps, func(q queue) bool { return q.probing })
}
