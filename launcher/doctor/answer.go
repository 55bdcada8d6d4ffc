package doctor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// What a peer may ask on a connection, in one byte, as often as it likes.
const (
	askWho  = 'i' // answered with the id
	askTime = 't' // answered with the clock: 8 bytes, nanoseconds since 1970, big-endian
	askSink = 's' // whatever follows is read and thrown away, until the end
)

const (
	idLength  = 26 // of rand.Text
	idleBound = 30 * time.Second
)

// answerer is what a host's peers probe: listeners, and who answers on them.
type answerer struct {
	id     string
	clock  func() time.Time
	ports  []uint16 // that it listens on
	busy   []uint16 // of those that were asked for: somebody else has them
	denied []uint16 // of those: who has no rights may not listen there

	listeners []net.Listener
	routines  sync.WaitGroup

	mu     sync.Mutex // guards what follows
	conns  map[net.Conn]bool
	closed bool
}

// newAnswerer listens on all ports from first to last, or on a free one where both are
// 0; at an address, or at all of them where it is not valid.
func (m *Machine) newAnswerer(ctx context.Context, at netip.Addr, first, last int, clock func() time.Time) (*answerer, error) {
	a := &answerer{id: rand.Text(), clock: clock, conns: map[net.Conn]bool{}}
	host := ""
	if at.IsValid() {
		host = at.String()
	}
	for port := first; port <= last; port++ {
		l, err := m.Listen(ctx, net.JoinHostPort(host, fmt.Sprint(port)))
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			a.busy = append(a.busy, uint16(port))
			continue
		case errors.Is(err, syscall.EACCES):
			a.denied = append(a.denied, uint16(port))
			continue
		}
		if err != nil {
			a.close()
			return nil, fmt.Errorf("listening for the probes of other hosts: %w", err)
		}
		a.listeners = append(a.listeners, l)
		a.ports = append(a.ports, uint16(l.Addr().(*net.TCPAddr).Port))
		a.routines.Go(func() { a.routineAccept(l) })
	}
	return a, nil
}

// routineAccept takes connections. One a listener, started by newAnswerer; it ends
// with its listener, in close.
func (a *answerer) routineAccept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a connection that was gone again, or no descriptor left: its dialer sees it
		}
		a.mu.Lock()
		if a.closed {
			c.Close()
		} else {
			a.conns[c] = true
			a.routines.Go(func() { a.routineAnswer(c) })
		}
		a.mu.Unlock()
	}
}

// routineAnswer answers on one connection. Started by routineAccept; it ends with the
// connection, which the peer, a silence or close ends.
func (a *answerer) routineAnswer(c net.Conn) {
	defer func() {
		c.Close()
		a.mu.Lock()
		delete(a.conns, c)
		a.mu.Unlock()
	}()
	ask := make([]byte, 1)
	for {
		if c.SetDeadline(time.Now().Add(idleBound)) != nil {
			return
		}
		if _, err := io.ReadFull(c, ask); err != nil {
			return
		}
		var reply []byte
		switch ask[0] {
		case askWho:
			reply = []byte(a.id)
		case askTime:
			reply = binary.BigEndian.AppendUint64(nil, uint64(a.clock().UnixNano()))
		case askSink:
			io.Copy(io.Discard, c) // the deadline bounds it
			return
		default:
			return // somebody else, who knows none of this
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

// close ends all listeners and connections, and waits for their routines.
func (a *answerer) close() {
	for _, l := range a.listeners {
		l.Close()
	}
	a.mu.Lock()
	a.closed = true
	for c := range a.conns {
		c.Close()
	}
	a.mu.Unlock()
	a.routines.Wait()
}
