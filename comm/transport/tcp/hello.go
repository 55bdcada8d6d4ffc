package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// A dialer opens with a hello: magic, who it is, whom it means, which lane, how
// many lanes, and a proof that it knows the group's secret. The listener answers
// with a proof of its own. The connection counts from the dialer's first frame on:
// a dialer that did not wait for the proof has dropped it, and dials again.
const (
	magic     = "gorun-t1"
	proofSize = sha256.Size
	helloSize = len(magic) + 4*4 + proofSize

	// helloWithin bounds a stranger's stay.
	helloWithin = 5 * time.Second
)

type hello struct{ from, to, lane, lanes uint32 }

func (h hello) encode() []byte {
	b := []byte(magic)
	for _, v := range [4]uint32{h.from, h.to, h.lane, h.lanes} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func (m *Mesh) prove(who string, said []byte) []byte {
	mac := hmac.New(sha256.New, m.secret)
	io.WriteString(mac, who)
	mac.Write(said)
	return mac.Sum(nil)
}

// routineAccept takes connections. One per mesh, started by Join; ends when the
// listener is closed.
func (m *Mesh) routineAccept() {
	defer m.routines.Done()
	for {
		c, err := m.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or a connection that is gone already
			m.o.Logger.Warn("tcp: accept", "rank", m.o.Rank, "err", err)
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-m.life.Done():
				return
			}
		}
		if !m.adopt(c, -1) || !m.start(func() { m.routineGreet(c) }) {
			return
		}
	}
}

// routineGreet finds out who has connected, and receives from it. One for each
// accepted connection, started by routineAccept; strangers end it soon.
func (m *Mesh) routineGreet(c *net.TCPConn) {
	h, err := m.greet(c)
	if err != nil {
		m.o.Logger.Debug("tcp: dropped a stranger", "rank", m.o.Rank, "from", c.RemoteAddr().String(), "err", err)
		m.drop(c)
		return
	}
	m.routineRead(int(h.from), int(h.lane), c)
}

func (m *Mesh) greet(c *net.TCPConn) (hello, error) {
	c.SetDeadline(time.Now().Add(helloWithin))
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(c, b[:len(magic)]); err != nil {
		return hello{}, err
	}
	if string(b[:len(magic)]) != magic {
		return hello{}, fmt.Errorf("speaks another protocol: %q", b[:len(magic)])
	}
	if _, err := io.ReadFull(c, b[len(magic):]); err != nil {
		return hello{}, err
	}
	said, proof := b[:helloSize-proofSize], b[helloSize-proofSize:]
	if !hmac.Equal(proof, m.prove("dialer", said)) {
		return hello{}, errors.New("does not know the group's secret")
	}
	le := binary.LittleEndian
	f := said[len(magic):]
	h := hello{le.Uint32(f), le.Uint32(f[4:]), le.Uint32(f[8:]), le.Uint32(f[12:])}
	if int(h.to) != m.o.Rank || int(h.from) >= len(m.o.Peers) || int(h.lanes) != m.lanes(int(h.from)) || h.lane >= h.lanes {
		return hello{}, fmt.Errorf("means somebody else: %+v", h)
	}
	if err := m.take(int(h.from), int(h.lane)); err != nil {
		return hello{}, err
	}
	if err := m.welcome(c, int(h.from), said); err != nil {
		m.release(int(h.from), int(h.lane))
		return hello{}, err
	}
	return h, nil
}

// welcome answers a hello that is right.
func (m *Mesh) welcome(c *net.TCPConn, from int, said []byte) error {
	if err := m.tune(c, from); err != nil {
		return err
	}
	if err := m.know(c, from); err != nil {
		return err
	}
	if _, err := c.Write(m.prove("listener", said)); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// dial connects lane i to peer: it tries the peer's addresses in turn until one
// answers as that peer, or the deadline.
func (m *Mesh) dial(peer, i int, deadline time.Time) (net.Conn, error) {
	// Less than the caller waits: this error says more than that of a late call.
	ctx, cancel := context.WithTimeout(m.life, time.Until(deadline)*9/10)
	defer cancel()
	b, err := m.o.Exchange.Wait(ctx, endpointKey(peer))
	if err != nil {
		return nil, fmt.Errorf("it has not said where it listens: %w", err)
	}
	there, err := decodeEndpoint(b)
	if err != nil {
		return nil, err
	}
	say := hello{uint32(m.o.Rank), uint32(peer), uint32(i), uint32(len(m.outs[peer].lanes))}
	var before []string // what the latest full round found
	for patience := 500 * time.Millisecond; ; patience = min(2*patience, helloWithin) {
		if m.outs[peer].left.Load() {
			return nil, errLeft
		}
		var tried []string
		addrs := m.here.candidates(there, m.o.Peers[peer].Near)
		for _, addr := range addrs {
			c, err := m.try(ctx, addr, say, patience)
			if err == nil {
				return c, nil
			}
			tried = append(tried, err.Error())
		}
		if len(addrs) == 0 {
			tried = append(tried, fmt.Sprintf("none of its addresses %v can be reached from here (%v): set comm.interface", there.Addrs, m.here.Addrs))
		}
		if ctx.Err() == nil || before == nil {
			before = tried // else the deadline cut the round short
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("rank %d on %s cannot connect to it: %s", m.o.Rank, m.o.Peers[m.o.Rank].Host, strings.Join(before, "; "))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// try makes one connection and exchanges proofs.
func (m *Mesh) try(ctx context.Context, addr netip.AddrPort, say hello, patience time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	from := "this host"
	if m.here.bound.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(m.here.bound, 0))
		from = m.here.bound.String()
	} else if a, ok := routeTo(addr.Addr()); ok {
		from = a.String()
	}
	where := fmt.Sprintf("from %s to %s: ", from, addr)
	nc, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil, errors.New(where + "nobody listens there: the process has ended")
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
			return nil, errors.New(where + "no answer: a firewall, a wrong route, or the host is down")
		}
		return nil, errors.New(where + err.Error())
	}
	c := nc.(*net.TCPConn)
	if !m.adopt(c, -1) {
		return nil, errClosed
	}
	if err := m.introduce(c, say, patience); err != nil {
		m.drop(c)
		return nil, fmt.Errorf("%swhat listens there is not that rank: %w", where, err)
	}
	if err := m.know(c, int(say.to)); err != nil {
		m.drop(c)
		return nil, err
	}
	var head [frameSize]byte
	encodeFrame(&head, transport.Header{}, ready)
	if _, err := c.Write(head[:]); err != nil {
		m.drop(c)
		return nil, fmt.Errorf("%s%w", where, broken(err))
	}
	return c, nil
}

func (m *Mesh) introduce(c *net.TCPConn, say hello, patience time.Duration) error {
	if err := m.tune(c, int(say.to)); err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(patience))
	said := say.encode()
	if _, err := c.Write(append(said[:len(said):len(said)], m.prove("dialer", said)...)); err != nil {
		return err
	}
	answer := make([]byte, proofSize)
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if !hmac.Equal(answer, m.prove("listener", said)) {
		return errors.New("its proof is wrong")
	}
	return c.SetDeadline(time.Time{})
}
