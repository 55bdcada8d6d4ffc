// Package tcp joins ranks over TCP connections.
//
// A rank dials each peer that it has something to send to, when it first does,
// and listens for peers that have something for it. Messages to one peer take its
// connections in turn, so both ends know without a word which message comes where.
//
// Every accepted connection has to prove that it knows the group's secret, which
// lies in the job's store; others are dropped without a trace in the group.
//
// A rank that closes its end says goodbye on every connection; one goodbye counts
// for the connections that were still being made. A connection that ends without it
// has lost its process, and the group with it.
package tcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// depth is how many messages to one connection may be posted at once.
const depth = 64

// Exchange is the part of the job's store that belongs to one group.
type Exchange interface {
	Set(ctx context.Context, key string, value []byte) error
	// Wait blocks until the key exists.
	Wait(ctx context.Context, key string) ([]byte, error)
}

// Peer is what is known of a rank beforehand.
type Peer struct {
	Host string // its name in errors
	Near bool   // shares this rank's host and network namespace
}

// Options of one rank's end.
type Options struct {
	Rank      int
	Peers     []Peer // all ranks, this one too
	Exchange  Exchange
	Interface string // see listen
	// The listener takes one of these ports; 0 and 0: any free one.
	FirstPort, LastPort int
	// Conns is the number of connections in each direction between two ranks of one
	// host, and of two.
	Near, Far int
	// Timeout is how long a peer may leave data unread.
	Timeout time.Duration
	Traffic *transport.Traffic
	Logger  *slog.Logger
	// Check is asked about a message that came before its receive was posted: an
	// error says that it will never be.
	Check func(peer int, h transport.Header) error
	// Lost is told why the mesh failed, once, from a goroutine of the mesh.
	Lost func(error)
}

// Mesh is one rank's end of the connections. One goroutine at a time posts and
// waits; Abort and Close may be called from any.
type Mesh struct {
	o        Options
	secret   []byte
	listener *net.TCPListener
	here     endpoint
	ins      []inbound
	outs     []outbound
	timer    *time.Timer

	life   context.Context // ends with the mesh's failure, or with Close
	end    context.CancelFunc
	failed chan struct{} // closed once err is set
	once   sync.Once
	err    error

	mu       sync.Mutex       // guards what follows
	conns    map[net.Conn]int // open connections, and the peer; -1 while unknown
	leaving  bool             // Close says goodbye
	closed   bool             // nothing starts any more
	routines sync.WaitGroup
	closing  sync.Once
}

// inbound is what comes from one peer, lane i over its connection i.
type inbound struct {
	lanes          []inLane
	posted, waited int
	left           bool // peer has said goodbye; guarded by Mesh.mu
}

type inLane struct {
	wants chan message
	got   chan struct{} // one for each message received
	taken bool          // has its connection, or needs none any more; guarded by Mesh.mu
}

// message is data to send, or where to receive it.
type message struct {
	header transport.Header
	data   []byte
}

// outbound is what goes to one peer.
type outbound struct {
	lanes          []outLane
	posted, waited int
	dialed         bool
	left           atomic.Bool // peer has said goodbye
}

type outLane struct {
	messages chan message
	sent     chan struct{} // one for each message written
}

// Join starts this rank's end: it listens, and tells the others where. It does not
// wait for them.
func Join(ctx context.Context, o Options) (*Mesh, error) {
	l, here, err := listen(o.Interface, o.FirstPort, o.LastPort)
	if err != nil {
		return nil, fmt.Errorf("tcp: rank %d on %s: %w", o.Rank, o.Peers[o.Rank].Host, err)
	}
	m := &Mesh{o: o, listener: l, here: here, failed: make(chan struct{}), conns: map[net.Conn]int{},
		ins: make([]inbound, len(o.Peers)), outs: make([]outbound, len(o.Peers)), timer: time.NewTimer(time.Hour)}
	m.timer.Stop()
	m.life, m.end = context.WithCancel(context.Background())
	for p := range o.Peers {
		n := m.lanes(p)
		m.ins[p].lanes, m.outs[p].lanes = make([]inLane, n), make([]outLane, n)
		for i := range n {
			m.ins[p].lanes[i] = inLane{wants: make(chan message, depth), got: make(chan struct{}, depth)}
			m.outs[p].lanes[i] = outLane{make(chan message, depth), make(chan struct{}, depth)}
		}
	}
	if err := m.announce(ctx); err != nil {
		l.Close()
		return nil, fmt.Errorf("tcp: rank %d on %s: %w", o.Rank, o.Peers[o.Rank].Host, err)
	}
	m.routines.Add(2)
	go m.routineAccept()
	go m.routineWatch()
	return m, nil
}

// announce stores where this rank listens, and shares the group's secret.
func (m *Mesh) announce(ctx context.Context) error {
	if m.o.Rank == 0 {
		m.secret = make([]byte, 32)
		rand.Read(m.secret)
		if err := m.o.Exchange.Set(ctx, "secret", m.secret); err != nil {
			return err
		}
	}
	if err := m.o.Exchange.Set(ctx, endpointKey(m.o.Rank), m.here.encode()); err != nil {
		return err
	}
	var err error
	m.secret, err = m.o.Exchange.Wait(ctx, "secret")
	return err
}

// lanes is the number of connections in each direction between this rank and p.
func (m *Mesh) lanes(p int) int {
	if m.o.Peers[p].Near {
		return m.o.Near
	}
	return m.o.Far
}

// PostSend hands b to the connections to peer, who are dialed if they are not there.
func (m *Mesh) PostSend(c *transport.Call, peer int, b []byte) error {
	out := &m.outs[peer]
	if !out.dialed {
		out.dialed = true
		deadline := c.Deadline // c is the caller's again when PostSend returns
		for i := range out.lanes {
			if !m.start(func() { m.routineWrite(peer, i, deadline) }) {
				return m.cause()
			}
		}
	}
	lane := &out.lanes[out.posted%len(out.lanes)]
	out.posted++
	return m.post(c, peer, lane.messages, b)
}

// PostRecv says where the next message of peer goes.
func (m *Mesh) PostRecv(c *transport.Call, peer int, b []byte) error {
	in := &m.ins[peer]
	lane := &in.lanes[in.posted%len(in.lanes)]
	in.posted++
	return m.post(c, peer, lane.wants, b)
}

// WaitSend waits until the oldest message to peer not waited for before is in the
// hands of the kernel.
func (m *Mesh) WaitSend(c *transport.Call, peer int) error {
	out := &m.outs[peer]
	lane := &out.lanes[out.waited%len(out.lanes)]
	out.waited++
	return m.await(c, peer, lane.sent)
}

// WaitRecv waits for the message of the oldest receive not waited for before.
func (m *Mesh) WaitRecv(c *transport.Call, peer int) error {
	in := &m.ins[peer]
	lane := &in.lanes[in.waited%len(in.lanes)]
	in.waited++
	return m.await(c, peer, lane.got)
}

func (m *Mesh) post(c *transport.Call, peer int, to chan message, b []byte) error {
	select {
	case to <- message{c.Header, b}:
		return nil
	default:
	}
	wait := max(0, time.Until(c.Deadline))
	m.timer.Reset(wait)
	defer m.timer.Stop()
	select {
	case to <- message{c.Header, b}:
		return nil
	case <-m.failed:
		return m.err
	case <-m.timer.C:
		return &transport.TimeoutError{Peer: peer, Call: c.Header, Wait: wait}
	}
}

func (m *Mesh) await(c *transport.Call, peer int, done chan struct{}) error {
	select {
	case <-done:
		return nil
	default:
	}
	wait := max(0, time.Until(c.Deadline))
	m.timer.Reset(wait)
	defer m.timer.Stop()
	select {
	case <-done:
		return nil
	case <-m.failed:
		return m.err
	case <-m.timer.C:
		return &transport.TimeoutError{Peer: peer, Call: c.Header, Wait: wait}
	}
}
