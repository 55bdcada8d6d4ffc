package tcp

import (
	"errors"
	"fmt"
	"net"

	"github.com/gorun-dev/gorun/comm/transport"
)

// errClosed is what posts on a closed mesh fail with.
var errClosed = errors.New("tcp: the connections are closed")

func (m *Mesh) cause() error {
	select {
	case <-m.failed:
		return m.err
	default:
		return errClosed
	}
}

// start runs f as one of the goroutines that Close waits for.
func (m *Mesh) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.routines.Go(f)
	return true
}

// adopt takes responsibility for closing c.
func (m *Mesh) adopt(c net.Conn, peer int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		c.Close()
		return false
	}
	m.conns[c] = peer
	return true
}

// open lists the connections to known peers.
func (m *Mesh) open() map[net.Conn]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[net.Conn]int{}
	for c, peer := range m.conns {
		if peer >= 0 {
			out[c] = peer
		}
	}
	return out
}

// know records whose connection c is: from then on peer is told a goodbye on it. It
// fails once this rank leaves.
func (m *Mesh) know(c net.Conn, peer int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.leaving {
		return errClosed
	}
	m.conns[c] = peer
	return nil
}

// take gives lane i from peer to a connection.
func (m *Mesh) take(peer, i int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := &m.ins[peer]
	if in.left {
		return fmt.Errorf("rank %d: %w", peer, errLeft)
	}
	if in.lanes[i].taken {
		return fmt.Errorf("rank %d's connection %d is there already", peer, i)
	}
	in.lanes[i].taken = true
	return nil
}

// release takes the lane from a connection that brought nothing.
func (m *Mesh) release(peer, i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := &m.ins[peer]
	in.lanes[i].taken = false
	if in.left {
		m.outliveAll(peer)
	}
}

// parted notes a goodbye of peer, on whichever connection. What it has sent came
// over connections that were there before, each with a goodbye of its own: nothing
// will come over the others.
func (m *Mesh) parted(peer int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ins[peer].left = true
	m.outs[peer].left.Store(true)
	m.outliveAll(peer)
}

// outliveAll watches the lanes without a connection of a peer that has left. The
// caller holds the lock.
func (m *Mesh) outliveAll(peer int) {
	for i := range m.ins[peer].lanes {
		lane := &m.ins[peer].lanes[i]
		if lane.taken || m.closed {
			continue
		}
		lane.taken = true
		m.routines.Go(func() { m.outlive(peer, lane) })
	}
}

func (m *Mesh) drop(c net.Conn) {
	m.mu.Lock()
	delete(m.conns, c)
	m.mu.Unlock()
	c.Close()
}

// lost ends the mesh because of a peer, and says so to its owner.
func (m *Mesh) lost(err error) {
	if m.fail(err) && m.o.Lost != nil {
		m.o.Lost(err)
	}
}

func (m *Mesh) peerError(peer int, err error) error {
	return &transport.PeerError{Peer: peer, Host: m.o.Peers[peer].Host, Err: err}
}

// fail ends all waits with err. Only the first call counts, and none after Close.
func (m *Mesh) fail(err error) (first bool) {
	m.mu.Lock()
	over := m.closed || m.leaving
	m.mu.Unlock()
	if over {
		return false
	}
	m.once.Do(func() {
		first = true
		m.err = err
		close(m.failed)
	})
	return first
}

// Abort ends all waits with err and cuts all connections.
func (m *Mesh) Abort(err error) {
	m.fail(err)
	m.shut()
}

// shut closes every socket and keeps new ones from being made.
func (m *Mesh) shut() {
	m.mu.Lock()
	m.closed = true
	for c := range m.conns {
		c.Close()
	}
	m.mu.Unlock()
	m.end()
	m.listener.Close()
}

// Close says goodbye to all peers, closes the connections, and waits for the
// mesh's goroutines: afterwards no posted memory is touched. After a failure there
// is no goodbye.
func (m *Mesh) Close() error {
	m.closing.Do(func() {
		select {
		case <-m.failed:
		default:
			m.farewell()
		}
		m.shut()
	})
	m.routines.Wait()
	return nil
}
