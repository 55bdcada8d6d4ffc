package comm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/store"
)

// torch reads the variables of torch.distributed.
func (e *environment) torch(w *world) {
	host, port := e.text("MASTER_ADDR"), e.number("MASTER_PORT")
	if _, set := os.LookupEnv("TORCHELASTIC_RESTART_COUNT"); set {
		w.attempt = e.number("TORCHELASTIC_RESTART_COUNT")
	}
	w.job = cmp.Or(os.Getenv("TORCHELASTIC_RUN_ID"), "job")
	name := "MASTER_PORT"
	if _, set := os.LookupEnv("GORUN_STORE_PORT"); set {
		name, port = "GORUN_STORE_PORT", e.number("GORUN_STORE_PORT")
	}
	var secret bool
	w.token, secret = os.LookupEnv("GORUN_TOKEN")
	here := host == "localhost" || net.ParseIP(host).IsLoopback()
	switch {
	case e.err != nil:
		return
	case port < 1 || port > 65535:
		e.err = fmt.Errorf("comm: %s=%d: want a port from 1 to 65535", name, port)
	case name == "MASTER_PORT" && strings.EqualFold(os.Getenv("TORCHELASTIC_USE_AGENT_STORE"), "true"):
		e.err = fmt.Errorf("comm: torchrun's own store has MASTER_PORT=%d: set GORUN_STORE_PORT to another free port of %s, or run the program with gorun --nproc 4 -- ./prog", port, host)
	case !here && (!secret || w.token == ""):
		e.err = fmt.Errorf("comm: MASTER_ADDR=%s can be reached by others: set GORUN_TOKEN to a secret of the job's, the same on all ranks", host)
	}
	w.store = net.JoinHostPort(host, fmt.Sprint(port))
	w.listen = w.store
	if !here {
		w.listen = net.JoinHostPort("", fmt.Sprint(port)) // a host may have another address for its own name
	}
}

// serving is the store of a job without gorun. It is rank 0's; the zero value, all
// others', has nothing to serve.
type serving struct {
	server  *store.Server
	callers *callers
}

// leave is how long rank 0 serves the others on when the job has failed, so that they
// can learn why.
const leave = 5 * time.Second

func (w *world) serve() (serving, error) {
	if w.listen == "" || w.rank != 0 {
		return serving{}, nil
	}
	l, err := net.Listen("tcp", w.listen)
	if err != nil {
		return serving{}, fmt.Errorf("comm: rank 0 of %d cannot serve the job's store: %w: another program has the port, or MASTER_ADDR is not this host's", w.size, err)
	}
	c := &callers{Listener: l, none: make(chan struct{})}
	return serving{server: store.Serve(c, store.ServerOptions{Token: w.token}), callers: c}, nil
}

func (s serving) stop() error {
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// end stops serving when the others have closed their connections: they may still be at
// work on what needs no other rank. g is nil where it could not be made.
func (s serving) end(g *Group) error {
	if s.server == nil {
		return nil
	}
	within := leave
	if g != nil && errors.Is(g.Err(), ErrClosed) {
		within = g.o.Timeout
	}
	late := time.NewTimer(within)
	defer late.Stop()
	var err error
	select {
	case <-s.callers.gone():
	case <-late.C:
		err = fmt.Errorf("comm: rank 0: other ranks have not closed the group %s after it did, and lose the job's store now", within)
	}
	return errors.Join(err, s.stop())
}

// callers counts the open connections of a listener.
type callers struct {
	net.Listener
	mu    sync.Mutex
	open  int
	asked bool          // gone was called
	none  chan struct{} // closed when asked, and open is 0
}

func (c *callers) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.count(1)
	return &caller{Conn: conn, left: sync.OnceFunc(func() { c.count(-1) })}, nil
}

func (c *callers) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.open
	c.open += n
	if c.asked && c.open == 0 && before > 0 {
		c.closeNone()
	}
}

// gone is closed when no connection is open.
func (c *callers) gone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	if c.open == 0 {
		c.closeNone()
	}
	return c.none
}

func (c *callers) closeNone() {
	select {
	case <-c.none:
	default:
		close(c.none)
	}
}

type caller struct {
	net.Conn
	left func()
}

func (c *caller) Close() error {
	c.left()
	return c.Conn.Close()
}
