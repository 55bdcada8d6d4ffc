package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// ErrUnregistered is inside the error for a message of which one end is memory of a GPU,
// and the other is memory that its card does not know, so that it cannot travel.
var ErrUnregistered = errors.New("the peer's end of a message is memory that is not registered")

// PostSendGPU hands bytes lo to hi of memory of a GPU to peer, as PostSend does. The host
// does not touch them: the card reads them once the peer has said where they go, which is
// memory of a GPU too, or memory from Alloc or Adopt. What they hold is final when this is
// called. Sent tells when they are needed no more.
func (m *Mesh) PostSendGPU(c *transport.Call, peer int, from GPUMemory, lo, hi int) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.mayPost(from, lo, hi); err != nil {
		return err
	}
	p := &m.peers[peer]
	p.sends.push(&outgoing{header: c.Header, addr: from.buffer.Addr() + uintptr(lo), size: hi - lo, lkey: from.LKey, direct: true})
	return m.advance(p)
}

// PostRecvGPU says that the next message of peer goes to bytes lo to hi of memory of a GPU.
// Received tells when it is there, for the card: see FlushGPU for the GPU.
func (m *Mesh) PostRecvGPU(c *transport.Call, peer int, to GPUMemory, lo, hi int) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.mayPost(to, lo, hi); err != nil {
		return err
	}
	p := &m.peers[peer]
	p.wants.push(&incoming{header: c.Header, addr: to.buffer.Addr() + uintptr(lo), size: hi - lo, gpu: &to})
	return m.receive(p)
}

func (m *Mesh) mayPost(g GPUMemory, lo, hi int) error {
	if err := m.cause(); err != nil {
		return err
	}
	if g.Path == Staging || lo < 0 || lo >= hi || hi > g.buffer.Len() {
		return fmt.Errorf("rdma: bytes %d to %d of %d bytes of GPU memory, known to the card by %q: no message", lo, hi, g.buffer.Len(), g.Path)
	}
	return nil
}

// Sent says whether the oldest message to peer of which that is not known yet needs its
// memory no more. It does not wait; true is said once of each message, as WaitSend returns
// once for each.
func (m *Mesh) Sent(peer int) bool {
	m.use.Lock()
	defer m.use.Unlock()
	l := &m.peers[peer].sends
	if len(l.items) == 0 || !l.items[0].finished {
		return false
	}
	l.pop()
	return true
}

// Received is Sent for the messages of peer: it is there.
func (m *Mesh) Received(peer int) bool {
	m.use.Lock()
	defer m.use.Unlock()
	l := &m.peers[peer].wants
	if len(l.items) == 0 || !l.items[0].finished {
		return false
	}
	l.pop()
	return true
}

// Step is for callers who wait for several things at once, and so for none here: it moves
// all messages along, and returns. Where posted messages are not done it fails as their
// waits would: at the deadline of c, which they are of since that time, and when a peer is
// lost or has left.
func (m *Mesh) Step(c *transport.Call, since time.Time) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return err
	}
	if err := m.progress(); err != nil {
		return err
	}
	now := time.Now()
	late := func(of func(p *peer) bool) error {
		for r := range m.peers {
			if p := &m.peers[r]; r != m.o.Rank && of(p) {
				if err := m.patient(c, p, since, now); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for r := range m.peers {
		if p := &m.peers[r]; !p.sending() && !p.receiving() {
			p.asked = now
		}
	}
	// Who sends nothing is behind; who takes nothing may wait for another.
	if err := late((*peer).receiving); err != nil {
		return err
	}
	return late(func(p *peer) bool { return p.sending() && !p.receiving() })
}

// sending and receiving say that a message to p, or from it, is not done.
func (p *peer) sending() bool {
	n := len(p.sends.items)
	return n > 0 && !p.sends.items[n-1].finished
}

func (p *peer) receiving() bool {
	n := len(p.wants.items)
	return n > 0 && !p.wants.items[n-1].finished
}
