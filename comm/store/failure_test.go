package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

// TestMain serves a store until it is killed, where a test asks for that process.
func TestMain(m *testing.M) {
	if os.Getenv("STORE_TEST_SERVE") == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := Serve(l, ServerOptions{Token: "secret"})
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin) // lives no longer than the test
	s.Close()
}

// serveProcess runs a store in a process of its own.
func serveProcess(t *testing.T) (addr string, p *os.Process) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_SERVE=1")
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		stdin.Close()
		cmd.Wait()
	})
	_, err = fmt.Fscan(stdout, &addr)
	must(t, err)
	return addr, cmd.Process
}

// pendingCalls starts a Wait and a Watch and returns where their ends arrive.
func pendingCalls(t *testing.T, c *Client) <-chan error {
	t.Helper()
	ctx := bounded(t)
	must(t, c.Set(ctx, "here", nil))
	w, err := c.Watch(ctx, "here")
	must(t, err)
	_, err = w.Next(ctx) // the watch has reached the server
	must(t, err)
	ends := make(chan error, 2)
	go func() { _, err := c.Wait(ctx, "never"); ends <- err }()
	go func() { _, err := w.Next(ctx); ends <- err }()
	return ends
}

func wantLost(t *testing.T, c *Client, ends <-chan error) {
	t.Helper()
	for range cap(ends) {
		wantErr(t, <-ends, ErrServerLost, c.addr, `job "j"`)
	}
	<-c.Done()
	wantErr(t, c.Err(), ErrServerLost)
	wantErr(t, c.Set(bounded(t), "k", nil), ErrServerLost)
	_, err := c.Watch(bounded(t), "k")
	wantErr(t, err, ErrServerLost)
}

// The end of the connection tells, not the silence.
func TestServerKilled(t *testing.T) {
	addr, p := serveProcess(t)
	c, err := Dial(bounded(t), addr, Options{Token: "secret", Job: "j", Silence: time.Hour})
	must(t, err)
	defer c.Close()
	ends := pendingCalls(t, c)
	must(t, p.Kill())
	wantLost(t, c, ends)
}

// aSilence is one that a server on a busy machine does not fall into.
const aSilence = 4 * time.Second

func TestServerFrozen(t *testing.T) {
	t.Parallel()
	addr, p := serveProcess(t)
	c, err := Dial(bounded(t), addr, Options{Token: "secret", Job: "j", Silence: aSilence})
	must(t, err)
	defer c.Close()
	ends := pendingCalls(t, c)
	must(t, p.Signal(syscall.SIGSTOP))
	wantLost(t, c, ends)
}

// Close ends blocked calls itself: it does not come to cut them.
func TestServerClosed(t *testing.T) {
	s := serveWith(t, ServerOptions{Token: "secret", grace: time.Hour})
	c := dialWith(t, s, Options{Token: "secret", Job: "j", Silence: time.Hour})
	ends := pendingCalls(t, c)
	waiter := dial(t, s, "j", 0) // has no watch whose end would end its Wait
	waited := make(chan error, 1)
	go func() { _, err := waiter.Wait(bounded(t), "other"); waited <- err }()
	waitUntil(t, func() bool { return s.blocked("j", 0, "other") })
	mustClose(t, s)
	wantErr(t, <-waited, ErrServerLost)
	wantLost(t, c, ends)
	mustClose(t, s)
}

// mustClose fails where Close hangs.
func mustClose(t *testing.T, s *Server) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-bounded(t).Done():
		t.Fatal("Close hangs")
	}
}

// A new server at the old address has none of the old keys: the client must not
// take it for the one that it joined.
func TestServerReplaced(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	first := Serve(l, ServerOptions{Token: "secret"})
	c, err := Dial(bounded(t), addr, Options{Token: "secret", Job: "j", Silence: time.Hour})
	must(t, err)
	defer c.Close()
	must(t, c.Set(bounded(t), "k", nil))
	first.Close()
	l, err = net.Listen("tcp", addr)
	must(t, err)
	second := Serve(l, ServerOptions{Token: "secret"})
	defer second.Close()
	wantErr(t, c.Set(bounded(t), "k", nil), ErrServerLost)
	wantErr(t, c.Err(), ErrServerLost)

	// Even if a client had not noticed the break, the id would tell.
	fresh, err := Dial(bounded(t), addr, Options{Token: "secret", Job: "j"})
	must(t, err)
	defer fresh.Close()
	sc := &storepb.Scope{Job: "j", Server: first.id}
	_, err = fresh.rpc.Set(bounded(t), &storepb.SetRequest{Scope: sc, Key: "k"})
	wantErr(t, fromStatus(err), ErrServerLost, "another store")
}

func TestWrongTokenIsRefusedAtOnce(t *testing.T) {
	s := serve(t)
	for _, token := range []string{"", "secre", "secret2", "\x00\xff"} {
		_, err := Dial(bounded(t), s.Addr().String(), Options{Token: token, Job: "j"}) // tried again, it would end with the deadline
		wantErr(t, err, ErrToken, s.Addr().String(), "GORUN_TOKEN")
	}
	// Nor does any call of somebody who skips the greeting get through: a stream has a
	// gate of its own.
	conn, err := grpc.NewClient(s.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	rpc, sc := storepb.NewStoreClient(conn), &storepb.Scope{Job: "j", Server: s.id}
	_, err = rpc.Set(bounded(t), &storepb.SetRequest{Scope: sc, Key: "k"})
	wantErr(t, fromStatus(err), ErrToken)
	stream, err := rpc.Watch(bounded(t), &storepb.WatchRequest{Scope: sc})
	must(t, err)
	_, err = stream.Recv()
	wantErr(t, fromStatus(err), ErrToken)
}

// Until the server is there, connections fail: the first two are cut.
func TestDialWaitsForTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	joined := make(chan error, 1)
	ctx := bounded(t)
	go func() {
		c, err := Dial(ctx, l.Addr().String(), Options{Token: "secret", Job: "j"})
		if err == nil {
			err = c.Set(ctx, "k", nil)
			c.Close()
		}
		joined <- err
	}()
	for range 2 {
		conn, err := l.Accept()
		must(t, err)
		conn.Close()
	}
	s := Serve(l, ServerOptions{Token: "secret"})
	defer s.Close()
	must(t, <-joined)
}

func TestDialNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	l.Close()
	// How long it takes to be refused is up to the machine.
	for within := 300 * time.Millisecond; ; within *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		_, err = Dial(ctx, addr, Options{Token: "secret", Job: "j", Host: "h2"})
		cancel()
		if within > 10*time.Second || strings.Contains(err.Error(), "connection refused") {
			break
		}
	}
	wantErr(t, err, context.DeadlineExceeded, "dial", addr, "after ", "connection refused", "firewall", "on h2")
}

func TestDialSomethingElse(t *testing.T) {
	for name, answer := range map[string]string{
		"http": "HTTP/1.1 400 Bad Request\r\n\r\n",
		"ssh":  "SSH-2.0-OpenSSH_9.2\r\n",
		"mute": "",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					io.WriteString(c, answer)
				}
			}()
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			_, err = Dial(ctx, l.Addr().String(), Options{Token: "secret", Job: "j"})
			wantErr(t, err, context.DeadlineExceeded, "check that")
			t.Log(err)
		})
	}
}

// Garbage, half an HTTP/2 handshake and silence on the port disturb nobody, and
// Close does not wait for them.
func TestGarbageAndHalfOpenConnections(t *testing.T) {
	s := serveWith(t, ServerOptions{Token: "secret", handshake: time.Hour})
	ctx := bounded(t)
	noise := make([]byte, 1<<16)
	rand.Read(noise)
	for _, b := range [][]byte{noise, []byte("GET / HTTP/1.1\r\n\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM"), nil} {
		for range 4 {
			conn, err := net.Dial("tcp", s.Addr().String())
			must(t, err)
			defer conn.Close()
			if _, err := conn.Write(b); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatal(err)
			}
		}
	}
	c := dial(t, s, "j", 0)
	for range 100 {
		_, err := c.Add(ctx, "n", 1)
		must(t, err)
	}
	mustClose(t, s)
}

// A network that swallows everything, as a cut cable does: no reset, no end.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := newProxy(t, s.Addr().String())
	c, err := Dial(bounded(t), p.l.Addr().String(), Options{Token: "secret", Job: "j", Silence: aSilence})
	must(t, err)
	defer c.Close()
	ends := pendingCalls(t, c)
	p.cut.Store(math.MaxInt64)
	wantLost(t, c, ends)
	if errors.Is(c.Err(), ErrSwallowed) {
		t.Errorf("a cut is taken for something smaller: %v", c.Err())
	}
}

// A network that swallows what is on the connection, and lets a new one be made.
func TestMessagesSwallowed(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := newProxy(t, s.Addr().String())
	c, err := Dial(bounded(t), p.l.Addr().String(), Options{Token: "secret", Job: "j", Silence: time.Second, anew: patience})
	must(t, err)
	defer c.Close()
	p.cut.Store(1)
	<-c.Done()
	wantErr(t, c.Err(), ErrServerLost, "large ones do not")
	if !errors.Is(c.Err(), ErrSwallowed) {
		t.Errorf("got %v", c.Err())
	}
}

// latePings leaves the first pings unanswered, and answers the others at once.
type latePings struct {
	storepb.StoreClient
	late     int
	calls    int
	answered chan struct{}
}

func (l *latePings) Ping(ctx context.Context, _ *storepb.PingRequest, _ ...grpc.CallOption) (*storepb.PingReply, error) {
	l.calls++
	if l.calls <= l.late {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	l.answered <- struct{}{}
	return &storepb.PingReply{}, nil
}

// One late ping is no death: the client itself may have been stopped. Two are.
func TestLatePings(t *testing.T) {
	s := serve(t)
	for late, lost := range map[int]bool{0: false, 1: false, 2: true} {
		d := dial(t, s, "j", 0)
		pings := &latePings{late: late, answered: make(chan struct{}, 1000)}
		c := &Client{o: d.o, addr: d.addr, scope: d.scope, rpc: pings}
		c.o.Silence = 100 * time.Millisecond
		c.life, c.end = context.WithCancelCause(context.Background())
		c.routines.Add(1) // as Dial does
		go c.routineHeartbeat()
		select {
		case <-pings.answered:
			if lost {
				t.Errorf("alive after %d late pings", late)
			}
		case <-c.Done():
			if !lost {
				t.Errorf("lost after %d late pings: %v", late, c.Err())
			}
			wantErr(t, c.Err(), ErrServerLost, "100ms")
		}
		c.end(ErrClosed)
		c.routines.Wait()
	}
}

// proxy forwards bytes until it is cut; then it reads and drops them.
type proxy struct {
	l       net.Listener
	to      string
	cut     atomic.Int64 // so many connections, the oldest
	running sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{l: l, to: to}
	p.running.Go(p.routineAccept)
	t.Cleanup(func() { l.Close() })
	return p
}

// routineAccept pairs connections until the listener is closed.
func (p *proxy) routineAccept() {
	for n := int64(1); ; n++ {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		p.running.Go(func() { p.copy(n, out, in) })
		p.running.Go(func() { p.copy(n, in, out) })
	}
}

func (p *proxy) copy(number int64, dst, src net.Conn) {
	defer dst.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		if number > p.cut.Load() {
			dst.Write(buf[:n])
		}
	}
}
