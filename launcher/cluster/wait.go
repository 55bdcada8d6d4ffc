package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/store"
)

const (
	knockTimeout = 3 * time.Second        // of one attempt to connect
	knockPause   = 200 * time.Millisecond // between two
)

// reach waits until something listens at the endpoint, so that the user is told why
// nothing does in words of its own.
func (m *Member) reach(ctx context.Context) error {
	d := net.Dialer{Timeout: knockTimeout}
	why := errors.New("no answer")
	for tries := 0; ; tries++ {
		c, err := d.DialContext(ctx, "tcp", m.o.Endpoint)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() == nil {
			why = err
		}
		if tries == 0 && ctx.Err() == nil {
			m.o.Say("waiting for node 0 at %s", m.o.Endpoint)
		}
		select {
		case <-time.After(knockPause):
		case <-ctx.Done():
			return m.unreachable(why)
		}
	}
}

// unreachable says what an attempt to connect that failed means.
func (m *Member) unreachable(err error) error {
	if errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("nothing listens at %s (connection refused): is node 0 started?", m.o.Endpoint)
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err // without the address, again
	}
	return fmt.Errorf("%s cannot be reached (%w): check that it is node 0's host and port, and that no firewall lies between", m.o.Endpoint, err)
}

// plain is an error of the store in words for a user, who knows of no store.
func plain(err error) error {
	if errors.Is(err, store.ErrSwallowed) {
		return fmt.Errorf("node 0 cannot be talked to: %w", store.ErrSwallowed)
	}
	if errors.Is(err, store.ErrServerLost) {
		return errors.New("node 0 has ended, or is cut off, before all nodes had come")
	}
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e.Err
	}
	return err
}

// awaited names the nodes that are to come.
func awaited(nnodes int) string {
	if nnodes == 2 {
		return "node 1"
	}
	return fmt.Sprintf("nodes 1 to %d", nnodes-1)
}

// visitors is node 0's listener. Until the nodes have met it says, once a host, that
// somebody has come, spoken and left: the store lets nobody in with another token.
type visitors struct {
	net.Listener
	say func(format string, args ...any)
	met atomic.Bool

	mu   sync.Mutex // guards what follows
	told map[string]bool
}

// visit is one connection.
type visit struct {
	net.Conn
	visitors *visitors
	spoke    atomic.Bool
	left     sync.Once
}

func (v *visitors) Accept() (net.Conn, error) {
	c, err := v.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &visit{Conn: c, visitors: v}, nil
}

func (c *visit) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 { // who only connects looks whether the port is open
		c.spoke.Store(true)
	}
	return n, err
}

func (c *visit) Close() error {
	c.left.Do(func() { c.visitors.leave(c) })
	return c.Conn.Close()
}

func (v *visitors) leave(c *visit) {
	if v.met.Load() || !c.spoke.Load() {
		return
	}
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		host = c.RemoteAddr().String()
	}
	v.mu.Lock()
	first := !v.told[host]
	v.told[host] = true
	v.mu.Unlock()
	if first {
		v.say("somebody came from %s and left without joining: with a wrong token, if it was a node of this job", strings.TrimPrefix(host, "::ffff:"))
	}
}
