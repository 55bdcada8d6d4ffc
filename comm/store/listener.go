package store

import (
	"net"
	"sync"
)

// trackedListener remembers its open connections, so that Close can cut those that
// gRPC would wait for: it cannot stop one whose peer never finished the handshake.
type trackedListener struct {
	net.Listener

	mu     sync.Mutex // guards what follows
	open   map[*trackedConn]struct{}
	closed bool
}

func (l *trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &trackedConn{Conn: c, owner: l}
	l.open[t] = struct{}{}
	if l.closed {
		c.Close() // gRPC sees the error at its first read
	}
	return t, nil
}

// closeAll cuts every connection, and those that Accept may still return.
func (l *trackedListener) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.open {
		c.Conn.Close()
	}
}

type trackedConn struct {
	net.Conn
	owner *trackedListener
}

func (c *trackedConn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}
