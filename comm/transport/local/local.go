// Package local joins ranks that are goroutines of one process. A message is the
// sender's slice itself; the receiver copies it.
package local

import (
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// depth bounds the messages under way between two ranks in one direction.
// Collectives keep fewer outstanding.
const depth = 256

// Net is the wiring of n ranks. Every rank takes its end once.
type Net struct {
	n     int
	pipes []pipe // from*n + to

	mu  sync.Mutex
	now []transport.Header // what each rank calls; guarded by mu

	copying sync.RWMutex // held shared while a receiver reads a sender's memory
	once    sync.Once
	failed  chan struct{} // closed once err is set
	err     error
}

type pipe struct {
	messages chan message
	taken    chan struct{} // one for each message that its receiver has copied
}

type message struct {
	header transport.Header
	data   []byte
}

// NewNet wires n ranks.
func NewNet(n int) *Net {
	net := &Net{n: n, pipes: make([]pipe, n*n), now: make([]transport.Header, n), failed: make(chan struct{})}
	for i := range net.pipes {
		net.pipes[i] = pipe{make(chan message, depth), make(chan struct{}, depth)}
	}
	return net
}

// Links is one rank's end. One goroutine at a time uses it, but for Abort.
type Links struct {
	net     *Net
	rank    int
	now     transport.Header
	posted  [][][]byte // receives of each peer, the oldest at next
	next    []int
	timer   *time.Timer
	traffic *transport.Traffic
}

// Links returns rank's end, which adds what it moves to traffic.
func (net *Net) Links(rank int, traffic *transport.Traffic) *Links {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &Links{net: net, rank: rank, posted: make([][][]byte, net.n), next: make([]int, net.n), timer: timer, traffic: traffic}
}

func (l *Links) out(peer int) *pipe { return &l.net.pipes[l.rank*l.net.n+peer] }
func (l *Links) in(peer int) *pipe  { return &l.net.pipes[peer*l.net.n+l.rank] }

// enter compares a call with what the other ranks are in. It finds ranks that only
// send to each other, whose messages nobody would look at.
func (l *Links) enter(h transport.Header) error {
	if h == l.now {
		return nil
	}
	l.now = h
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.now[l.rank] = h
	if h.Kind == transport.Send {
		return nil // numbered by pair of ranks, not by calls of the group
	}
	for r, theirs := range l.net.now {
		if theirs.Kind != 0 && theirs.Kind != transport.Send && theirs.Seq == h.Seq && theirs != h {
			return &transport.MismatchError{Rank: l.rank, Peer: r, Mine: h, Theirs: theirs}
		}
	}
	return nil
}

// PostSend hands b to peer, who reads it until WaitSend says so.
func (l *Links) PostSend(c *transport.Call, peer int, b []byte) error {
	if err := l.enter(c.Header); err != nil {
		return err
	}
	l.traffic.Sent.Add(int64(len(b)))
	m := message{c.Header, b}
	select {
	case l.out(peer).messages <- m:
		return nil
	default:
	}
	l.timer.Reset(time.Until(c.Deadline))
	defer l.timer.Stop()
	select {
	case l.out(peer).messages <- m:
		return nil
	case <-l.net.failed:
		return l.net.err
	case <-l.timer.C:
		return &transport.TimeoutError{Peer: peer, Call: c.Header}
	}
}

// PostRecv says where the next message of peer goes.
func (l *Links) PostRecv(c *transport.Call, peer int, b []byte) error {
	if err := l.enter(c.Header); err != nil {
		return err
	}
	if l.next[peer] == len(l.posted[peer]) {
		l.posted[peer], l.next[peer] = l.posted[peer][:0], 0
	}
	l.posted[peer] = append(l.posted[peer], b)
	return nil
}

// WaitSend waits until peer has taken the oldest message not waited for before.
func (l *Links) WaitSend(c *transport.Call, peer int) error {
	_, err := await(l, c, peer, l.out(peer).taken)
	return err
}

// WaitRecv waits for the message of the oldest receive not waited for before.
func (l *Links) WaitRecv(c *transport.Call, peer int) error {
	dst := l.posted[peer][l.next[peer]]
	l.next[peer]++
	m, err := await(l, c, peer, l.in(peer).messages)
	if err != nil {
		return err
	}
	if m.header != c.Header {
		return &transport.MismatchError{Rank: l.rank, Peer: peer, Mine: c.Header, Theirs: m.header}
	}
	if len(m.data) != len(dst) {
		return fmt.Errorf("rank %d sent %d bytes where rank %d expects %d, in %s", peer, len(m.data), l.rank, len(dst), c.Header)
	}
	if err := l.copy(dst, m.data); err != nil {
		return err
	}
	l.in(peer).taken <- struct{}{}
	l.traffic.Received.Add(int64(len(dst)))
	return nil
}

func (l *Links) copy(dst, src []byte) error {
	l.net.copying.RLock()
	defer l.net.copying.RUnlock()
	select {
	case <-l.net.failed:
		return l.net.err
	default:
	}
	copy(dst, src)
	return nil
}

func await[T any](l *Links, c *transport.Call, peer int, from chan T) (v T, err error) {
	select {
	case v = <-from:
		return v, nil
	default:
	}
	wait := max(0, time.Until(c.Deadline))
	l.timer.Reset(wait)
	defer l.timer.Stop()
	select {
	case v = <-from:
		return v, nil
	case <-l.net.failed:
		return v, l.net.err
	case <-l.timer.C:
		return v, &transport.TimeoutError{Peer: peer, Call: c.Header, Wait: wait}
	}
}

// Abort ends every rank's waits with err. When it returns, no rank touches the
// memory of another any more.
func (l *Links) Abort(err error) {
	l.net.once.Do(func() {
		l.net.copying.Lock()
		l.net.err = err
		close(l.net.failed)
		l.net.copying.Unlock()
	})
}

// Close has nothing to release.
func (l *Links) Close() error { return nil }
