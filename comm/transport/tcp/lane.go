package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

var (
	// errDied is inside the PeerError for a connection that ended without a goodbye.
	errDied = errors.New("its connection ended without a goodbye: the process died, or its group failed")
	// errLeft is inside the PeerError for a rank that closed the group too early.
	errLeft = errors.New("it has closed the group")
)

// goodbyeWithin bounds what Close does for its peers.
const goodbyeWithin = 2 * time.Second

// routineWrite dials lane i to peer and writes what is posted on it. PostSend
// starts it with the peer's first message; it ends with the mesh.
func (m *Mesh) routineWrite(peer, i int, deadline time.Time) {
	// Who cannot connect knows why, and says so before those who wait for it give up.
	lane := &m.outs[peer].lanes[i]
	c, err := m.dial(peer, i, deadline.Add(-time.Until(deadline)/8))
	if errors.Is(err, errLeft) { // which is no harm where nothing is to go this way
		select {
		case msg := <-lane.messages:
			m.lost(m.peerError(peer, fmt.Errorf("%w, but is to receive %s", errLeft, msg.header)))
		case <-m.life.Done():
		}
		return
	}
	if err != nil {
		m.lost(m.peerError(peer, err))
		return
	}
	defer m.drop(c)
	m.start(func() { m.routineListen(peer, c) })
	var (
		head   [frameSize]byte
		chunks [2][]byte
		vector net.Buffers
	)
	for {
		select {
		case msg := <-lane.messages:
			encodeFrame(&head, msg.header, uint64(len(msg.data)))
			chunks[0], chunks[1] = head[:], msg.data
			vector = chunks[:]
			if _, err := vector.WriteTo(c); err != nil {
				if err = broken(err); m.outs[peer].left.Load() {
					err = fmt.Errorf("%w, but is to receive %s", errLeft, msg.header)
				}
				m.lost(m.peerError(peer, err))
				return
			}
			m.o.Traffic.Sent.Add(int64(len(msg.data)))
			lane.sent <- struct{}{}
		case <-m.life.Done():
			return
		}
	}
}

// routineListen notices when peer goes while nothing is sent to it. One for each
// dialed connection, started by routineWrite; ends with the connection.
func (m *Mesh) routineListen(peer int, c net.Conn) {
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil {
		m.lost(m.peerError(peer, broken(err)))
		return
	}
	m.parted(peer) // nothing but a goodbye comes this way
}

// routineRead receives lane i from peer. routineGreet starts it; it ends with the
// connection or the mesh.
func (m *Mesh) routineRead(peer, i int, c net.Conn) {
	defer m.drop(c)
	lane := &m.ins[peer].lanes[i]
	r := bufio.NewReaderSize(c, 4096)
	var head [frameSize]byte
	for first := true; ; first = false {
		_, err := io.ReadFull(r, head[:])
		if err != nil && first {
			m.release(peer, i)
			return
		}
		if err != nil {
			m.lost(m.peerError(peer, broken(err)))
			return
		}
		h, size := decodeFrame(&head)
		switch size {
		case ready:
			continue
		case goodbye:
			m.parted(peer)
			m.outlive(peer, lane)
			return
		}
		w, ok := m.match(peer, lane, h)
		if !ok {
			return
		}
		switch {
		case w.header != h:
			m.lost(&transport.MismatchError{Rank: m.o.Rank, Peer: peer, Mine: w.header, Theirs: h})
			return
		case size != uint64(len(w.data)):
			m.lost(fmt.Errorf("rank %d on %s sent %d bytes where %d are expected, in %s: its version differs",
				peer, m.o.Peers[peer].Host, size, len(w.data), h))
			return
		}
		if _, err := io.ReadFull(r, w.data); err != nil {
			m.lost(m.peerError(peer, broken(err)))
			return
		}
		m.o.Traffic.Received.Add(int64(size))
		lane.got <- struct{}{}
	}
}

// match waits for the receive to which a message with header h belongs.
func (m *Mesh) match(peer int, lane *inLane, h transport.Header) (message, bool) {
	select {
	case w := <-lane.wants:
		return w, true
	default:
	}
	if m.o.Check != nil {
		if err := m.o.Check(peer, h); err != nil {
			m.lost(err)
			return message{}, false
		}
	}
	select {
	case w := <-lane.wants:
		return w, true
	case <-m.life.Done():
		return message{}, false
	}
}

// outlive fails the mesh if something is wanted on a lane of a peer that has left.
func (m *Mesh) outlive(peer int, lane *inLane) {
	select {
	case w := <-lane.wants:
		m.lost(m.peerError(peer, fmt.Errorf("%w, and did not call %s", errLeft, w.header)))
	case <-m.life.Done():
	}
}

// farewell tells the peers on every connection that this rank leaves. All sends
// have been waited for, so nothing of use is behind them.
func (m *Mesh) farewell() {
	var head [frameSize]byte
	encodeFrame(&head, transport.Header{}, goodbye)
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	until := time.Now().Add(goodbyeWithin)
	for c := range m.open() {
		c.SetWriteDeadline(until)
		if _, err := c.Write(head[:]); err != nil {
			m.o.Logger.Debug("tcp: no goodbye", "rank", m.o.Rank, "peer", c.RemoteAddr().String(), "err", err)
		}
	}
}

// broken explains how a connection ended.
func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w (%w)", errDied, err)
	}
	if errors.Is(err, syscall.ETIMEDOUT) {
		return fmt.Errorf("its host does not answer any more: it is down or cut off (%w)", err)
	}
	return err
}
