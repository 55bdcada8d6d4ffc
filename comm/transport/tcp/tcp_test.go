package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// exchange is a store within the test.
type exchange struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{}
}

func newExchange() *exchange {
	return &exchange{values: map[string][]byte{}, changed: make(chan struct{})}
}

func (e *exchange) Set(_ context.Context, key string, value []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.values[key] = value
	close(e.changed)
	e.changed = make(chan struct{})
	return nil
}

func (e *exchange) Wait(ctx context.Context, key string) ([]byte, error) {
	for {
		e.mu.Lock()
		v, ok := e.values[key]
		changed := e.changed
		e.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// end is a mesh, and why it was lost.
type end struct {
	*Mesh
	traffic transport.Traffic
	lost    chan error
}

// join makes n ends.
func join(t *testing.T, n int, ex Exchange, check func(peer int, h transport.Header) error) []*end {
	t.Helper()
	peers := make([]Peer, n)
	for r := range peers {
		peers[r] = Peer{Host: fmt.Sprintf("host%d", r), Near: true}
	}
	var ends []*end
	for r := range n {
		e := &end{lost: make(chan error, 1)}
		var err error
		e.Mesh, err = Join(t.Context(), Options{Rank: r, Peers: peers, Exchange: ex, Near: 2, Far: 2, Timeout: time.Minute,
			Traffic: &e.traffic, Logger: slog.Default(), Check: check, Lost: func(err error) { e.lost <- err }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		ends = append(ends, e)
	}
	return ends
}

func callAt(seq uint64, within time.Duration) *transport.Call {
	return &transport.Call{Header: transport.Header{Seq: seq, Kind: transport.Broadcast, DType: dtype.U8, Root: 0}, Deadline: time.Now().Add(within)}
}

// pass sends text from a to b, rank a.o.Rank to b.o.Rank.
func pass(t *testing.T, a, b *end, seq uint64, text string) {
	t.Helper()
	c := callAt(seq, 20*time.Second)
	got := make([]byte, len(text))
	if err := errors.Join(
		a.PostSend(c, b.o.Rank, []byte(text)), b.PostRecv(c, a.o.Rank, got),
		a.WaitSend(c, b.o.Rank), b.WaitRecv(c, a.o.Rank)); err != nil {
		t.Fatal(err)
	}
	if string(got) != text {
		t.Fatalf("got %q, want %q", got, text)
	}
}

func TestMessagesKeepTheirOrderOverSeveralConnections(t *testing.T) {
	ends := join(t, 2, newExchange(), nil)
	c := callAt(1, 20*time.Second)
	const n = 40
	var got [n][3]byte
	for i := range n {
		if err := errors.Join(ends[0].PostSend(c, 1, fmt.Appendf(nil, "%03d", i)), ends[1].PostRecv(c, 0, got[i][:])); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if err := errors.Join(ends[0].WaitSend(c, 1), ends[1].WaitRecv(c, 0)); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%03d", i); string(got[i][:]) != want {
			t.Fatalf("message %d is %q", i, got[i])
		}
	}
	if s, r := ends[0].traffic.Sent.Load(), ends[1].traffic.Received.Load(); s != 3*n || r != 3*n {
		t.Errorf("%d bytes sent, %d received, want %d", s, r, 3*n)
	}
}

// Whoever is not of the group is dropped, and disturbs nobody.
func TestStrangersAreDropped(t *testing.T) {
	ends := join(t, 2, newExchange(), nil)
	m := ends[1].Mesh
	at := net.JoinHostPort("127.0.0.1", fmt.Sprint(m.here.Port))
	dial := func() net.Conn {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial() // says nothing, and stays
	half := dial()
	half.Write([]byte(magic)[:5])
	forged := hello{from: 0, to: 1, lane: 0, lanes: 2}.encode()
	for name, said := range map[string][]byte{
		"another protocol": []byte("GET / HTTP/1.1\r\nHost: gorun\r\n\r\n"),
		"no proof":         append(forged[:len(forged):len(forged)], make([]byte, proofSize)...),
		"wrong listener":   withProof(m, hello{from: 0, to: 0, lane: 0, lanes: 2}),
		"no such rank":     withProof(m, hello{from: 9, to: 1, lane: 0, lanes: 2}),
		"no such lane":     withProof(m, hello{from: 0, to: 1, lane: 7, lanes: 2}),
		"other lanes":      withProof(m, hello{from: 0, to: 1, lane: 0, lanes: 3}),
	} {
		c := dial()
		if _, err := c.Write(said); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.Read(make([]byte, 100)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %d bytes, %v; want to be dropped", name, n, err)
		}
	}
	pass(t, ends[0], ends[1], 1, "still here")
	// The lane is taken now, by its owner.
	c := dial()
	c.Write(withProof(m, hello{from: 0, to: 1, lane: 0, lanes: 2}))
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 100)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a second connection for the same lane was taken")
	}
	pass(t, ends[0], ends[1], 2, "and still")
}

func withProof(m *Mesh, h hello) []byte {
	said := h.encode()
	return append(said, m.prove("dialer", said)...)
}

func TestMismatchedAndUnwantedMessages(t *testing.T) {
	ends := join(t, 2, newExchange(), nil)
	if err := errors.Join(ends[0].PostSend(callAt(1, time.Minute), 1, []byte("a")), ends[1].PostRecv(callAt(2, time.Minute), 0, make([]byte, 1))); err != nil {
		t.Fatal(err)
	}
	err := ends[1].WaitRecv(callAt(2, time.Minute), 0)
	if e, ok := errors.AsType[*transport.MismatchError](err); !ok || e.Rank != 1 || e.Peer != 0 || e.Mine.Seq != 2 || e.Theirs.Seq != 1 {
		t.Errorf("got %v", err)
	}

	asked := errors.New("that was another call")
	ends = join(t, 2, newExchange(), func(peer int, h transport.Header) error { return fmt.Errorf("%w: %d", asked, h.Seq) })
	if err := ends[0].PostSend(callAt(7, time.Minute), 1, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := <-ends[1].lost; !errors.Is(err, asked) || !strings.HasSuffix(err.Error(), ": 7") {
		t.Errorf("got %v", err)
	}
}

// A peer that leaves with a goodbye is missed only if something is wanted of it.
func TestGoodbye(t *testing.T) {
	ends := join(t, 3, newExchange(), nil)
	for seq := range uint64(2) { // over both connections
		pass(t, ends[0], ends[1], 1+3*seq, "a")
		pass(t, ends[1], ends[0], 2+3*seq, "b")
		pass(t, ends[0], ends[2], 3+3*seq, "c")
	}
	ends[0].Close()
	pass(t, ends[1], ends[2], 7, "others go on")
	c := callAt(8, 20*time.Second)
	err := errors.Join(ends[1].PostRecv(c, 0, make([]byte, 1)), ends[1].WaitRecv(c, 0))
	if e, ok := errors.AsType[*transport.PeerError](err); !ok || e.Peer != 0 || e.Host != "host0" || !errors.Is(err, errLeft) {
		t.Errorf("got %v", err)
	}
}

// stranger is a rank of which the test makes the connections by hand.
type stranger struct {
	t  *testing.T
	to *Mesh
}

// greet dials a lane of the two, and returns the connection when the proof is there.
func (s stranger) greet(from, lane uint32) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(s.to.here.Port)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(withProof(s.to, hello{from: from, to: uint32(s.to.o.Rank), lane: lane, lanes: 2})); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, proofSize)); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// frame sends a header and data, or what stands in place of the size.
func (s stranger) frame(c net.Conn, h transport.Header, size uint64, data string) {
	s.t.Helper()
	var head [frameSize]byte
	encodeFrame(&head, h, size)
	if _, err := c.Write(append(head[:], data...)); err != nil {
		s.t.Fatal(err)
	}
}

// A goodbye counts for all of a peer's lanes: one that never had a connection, and
// one that loses it while it is made.
func TestGoodbyeBeforeALaneIsThere(t *testing.T) {
	for _, half := range []bool{false, true} {
		m := join(t, 2, newExchange(), nil)[1]
		s := stranger{t, m.Mesh}
		first := s.greet(0, 0)
		var second net.Conn
		if half {
			second = s.greet(0, 1)
		}
		c := callAt(1, 20*time.Second)
		s.frame(first, c.Header, 1, "a")
		if err := errors.Join(m.PostRecv(c, 0, make([]byte, 1)), m.WaitRecv(c, 0)); err != nil {
			t.Fatal(err)
		}
		s.frame(first, transport.Header{}, goodbye, "")
		if half {
			second.Close()
		}
		c = callAt(2, 20*time.Second) // on the second lane
		err := errors.Join(m.PostRecv(c, 0, make([]byte, 1)), m.WaitRecv(c, 0))
		if e, ok := errors.AsType[*transport.PeerError](err); !ok || e.Peer != 0 || !errors.Is(err, errLeft) {
			t.Errorf("second lane half made %t: got %v", half, err)
		}
	}
}

// Lanes are dialed together with the first message. One that nothing goes over is
// no reason to fail when the peer has got what it needed and left.
func TestPeerLeavesBeforeALaneIsThere(t *testing.T) {
	ex := newExchange()
	ends := join(t, 2, ex, nil)
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	ex.Set(t.Context(), endpointKey(1), endpoint{Port: there.Addr().(*net.TCPAddr).AddrPort().Port()}.encode())
	c := callAt(1, 20*time.Second)
	if err := ends[0].PostSend(c, 1, []byte("a")); err != nil {
		t.Fatal(err)
	}
	var answered net.Conn
	for said := make([]byte, helloSize); answered == nil; { // one lane is greeted, whichever
		if answered, err = there.Accept(); err != nil {
			t.Fatal(err)
		}
		defer answered.Close()
		if _, err := io.ReadFull(answered, said); err != nil {
			t.Fatal(err)
		}
		if said[len(magic)+8] != 0 { // the second lane
			answered.Close()
			answered = nil
			continue
		}
		answered.Write(ends[0].prove("listener", said[:helloSize-proofSize]))
	}
	if err := ends[0].WaitSend(c, 1); err != nil {
		t.Fatal(err)
	}
	stranger{t: t}.frame(answered, transport.Header{}, goodbye, "")
	there.Close()
	// It fails when something is to go that way, and only then.
	c = callAt(2, 20*time.Second)
	err = errors.Join(ends[0].PostSend(c, 1, []byte("b")), ends[0].WaitSend(c, 1))
	if e, ok := errors.AsType[*transport.PeerError](err); !ok || e.Peer != 1 || !errors.Is(err, errLeft) || !strings.Contains(err.Error(), "is to receive") {
		t.Errorf("got %v", err)
	}
}

// A dialer that did not wait for the proof dials again, and gets its lane.
func TestDialerGivesUp(t *testing.T) {
	m := join(t, 2, newExchange(), nil)[1]
	s := stranger{t, m.Mesh}
	s.greet(0, 0).Close()
	var again net.Conn
	for until := time.Now().Add(20 * time.Second); again == nil; { // until the first one's end has been seen
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(m.here.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(until)
		c.Write(withProof(m.Mesh, hello{from: 0, to: 1, lane: 0, lanes: 2}))
		if _, err := io.ReadFull(c, make([]byte, proofSize)); err == nil {
			again = c
		}
		if time.Now().After(until) {
			t.Fatal("the lane is never free")
		}
	}
	c := callAt(1, 20*time.Second)
	s.frame(again, transport.Header{}, ready, "")
	s.frame(again, c.Header, 1, "a")
	if err := errors.Join(m.PostRecv(c, 0, make([]byte, 1)), m.WaitRecv(c, 0)); err != nil {
		t.Error(err)
	}
}

// A peer that goes without one is noticed at once, also by who only sends to it.
func TestDeath(t *testing.T) {
	ends := join(t, 3, newExchange(), nil)
	pass(t, ends[0], ends[1], 1, "a")
	pass(t, ends[2], ends[0], 2, "b")
	ends[0].Abort(errors.New("killed"))
	for _, r := range []int{1, 2} {
		err := <-ends[r].lost
		if e, ok := errors.AsType[*transport.PeerError](err); !ok || e.Peer != 0 || !errors.Is(err, errDied) {
			t.Errorf("rank %d: got %v", r, err)
		}
		c := callAt(3, time.Minute)
		if err := errors.Join(ends[r].PostSend(c, 3-r, nil), ends[r].WaitSend(c, 3-r)); err == nil {
			t.Errorf("rank %d goes on", r)
		}
	}
}

func TestDeadline(t *testing.T) {
	ends := join(t, 2, newExchange(), nil)
	c := callAt(1, 30*time.Millisecond)
	err := errors.Join(ends[1].PostRecv(c, 0, make([]byte, 1)), ends[1].WaitRecv(c, 0))
	if e, ok := errors.AsType[*transport.TimeoutError](err); !ok || e.Peer != 0 || e.Call != c.Header {
		t.Errorf("got %v", err)
	}
}

// Who cannot connect says from where to where it tried, and what happened.
func TestDialSaysWhatItTried(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	there := endpoint{Port: gone.Addr().(*net.TCPAddr).AddrPort().Port()}
	gone.Close()
	want := fmt.Sprintf("from 127.0.0.1 to 127.0.0.1:%d: nobody listens there", there.Port)
	// How long it takes to hear of that is up to the machine.
	for within := 200 * time.Millisecond; ; within *= 2 {
		ex := newExchange()
		ends := join(t, 2, ex, nil)
		ex.Set(t.Context(), endpointKey(1), there.encode())
		if err := ends[0].PostSend(callAt(1, within), 1, []byte("x")); err != nil {
			t.Fatal(err)
		}
		err = <-ends[0].lost
		if strings.Contains(err.Error(), want) || within > 10*time.Second {
			break
		}
	}
	if _, ok := errors.AsType[*transport.PeerError](err); !ok || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rank 1 on host1") {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestListen(t *testing.T) {
	for _, want := range []string{"nosuch0", "lo", "127.0.0.1", "fe80::1"} {
		if l, _, err := listen(want, 0, 0); err == nil {
			l.Close()
			t.Errorf("%q was accepted", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	all, err := addresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.IP.IsLoopback() || a.IP.IsLinkLocalUnicast() || !a.IP.IsValid() {
			t.Errorf("%v is not for other hosts", a)
		}
		l, e, err := listen(a.IP.String(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if e.bound != a.IP || len(e.Addrs) != 1 || l.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap() != a.IP {
			t.Errorf("asked for %s, listens on %s: %+v", a, l.Addr(), e)
		}
		l.Close()
	}
}

func TestCandidates(t *testing.T) {
	all, err := addresses()
	if err != nil {
		t.Fatal(err)
	}
	here := endpoint{Addrs: all}
	// Between hosts: no loopback, and no address that this host has itself (the
	// bridge of a container engine has the same one everywhere).
	peer := endpoint{Addrs: append([]address{{IP: netip.MustParseAddr("127.0.0.1"), Name: "lo"}}, all...), Port: 7}
	if got := here.candidates(peer, false); len(got) != 0 {
		t.Errorf("between hosts: %v", got)
	}
	// Within a host: loopback, unless the peer listens on one address.
	two := endpoint{Addrs: []address{{IP: netip.MustParseAddr("10.1.2.3")}, {IP: netip.MustParseAddr("10.1.2.4")}}, Port: 7}
	if got := here.candidates(two, true); len(got) != 4 || got[0] != netip.MustParseAddrPort("127.0.0.1:7") {
		t.Errorf("within a host: %v", got)
	}
	one := endpoint{Addrs: two.Addrs[:1], Port: 7}
	if got := here.candidates(one, true); len(got) != 3 || got[0] != netip.MustParseAddrPort("10.1.2.3:7") {
		t.Errorf("within a host, on one address: %v", got)
	}
}

// A rank listens within the range that it is given, on the first port that nobody
// has, and says so where there is none.
func TestPorts(t *testing.T) {
	var taken []*net.TCPListener
	defer func() {
		for _, l := range taken {
			l.Close()
		}
	}()
	first := 0
	for tries := 0; first == 0; tries++ { // a free port whose two successors are free too
		if tries == 100 {
			t.Fatal("there are no three free ports")
		}
		port := 15000 + rand.IntN(15000) // below those that the kernel gives to connections
		first = port
		for p := range 3 {
			l, _, err := listen("", port+p, port+p)
			if err != nil {
				first = 0
				break
			}
			l.Close()
		}
	}
	for i := range 3 {
		l, e, err := listen("", first, first+2)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, l)
		if want := first + i; int(e.Port) != want || l.Addr().(*net.TCPAddr).Port != want {
			t.Errorf("listener %d is on port %d and says %d, want %d", i, l.Addr().(*net.TCPAddr).Port, e.Port, want)
		}
	}
	want := fmt.Sprintf("the ports %d to %d are all in use", first, first+2)
	if l, _, err := listen("", first, first+2); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a fourth listener %v: %v, want %q", l, err, want)
	}
}
