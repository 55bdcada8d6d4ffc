// Package rdma joins ranks over RDMA: InfiniBand, and RoCE on Ethernet.
//
// Every rank has reliable queue pairs to every other. Data moves by one-sided writes;
// immediate data tells the receiver about them. wire.go says what is written where.
// Receives are posted beforehand for all that a peer may write before it hears from
// this rank, so that a write never finds none.
//
// A call that waits polls the completion queue, for a moment without and then with the
// help of Go's network poller, and moves everybody's messages along. A peer that is
// waited for is probed by empty writes, so that one that has died is noticed; and every
// write has a deadline of its own, for a device that never tells the end of one. In the
// background run two goroutines alone: one listens to the device, the other probes all
// peers now and then while there is no call.
package rdma

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

const (
	maxQPs   = 16
	slots    = 16 // records to a peer under way
	grants   = 8  // announced messages to a peer under way
	slotMost = 64 << 10
	slotLow  = 4 << 10
	// slotMemory bounds what the slots of all peers take.
	slotMemory = 256 << 20

	sendDepth = 64 // writes of a queue pair under way
	// sendReserve of them is kept for what moves others along: credits and grants.
	sendReserve = 16
	// recvDepth is the most writes with immediate data that a peer may have under way
	// on one queue pair: records, grants, stripes, and credits.
	recvDepth = slots + 2*grants + 8

	// directLeast is the smallest message for which asking for a grant is worth a trip.
	directLeast = 128 << 10
	// stripeLeast is the smallest part of a message that gets a queue pair of its own.
	stripeLeast = 64 << 10
)

// errClosed is what posts on a closed mesh fail with.
var errClosed = errors.New("rdma: the connections are closed")

// Mesh is one rank's end of the connections. One goroutine at a time posts and waits;
// Abort and Close may be called from any.
type Mesh struct {
	o        Options
	s        Settings
	api      *verbs.API
	port     port
	slotSize int
	peers    []peer // by rank; this rank's own is unused

	device  verbs.Context
	pd      verbs.PD
	channel verbs.Channel
	cq      *verbs.CQ
	memory  []byte // slots and grants of all peers, in and out
	region  verbs.Region
	regions []registered   // memory that moves without a copy
	gpu     []verbs.Region // memory of GPUs
	loop    *loop          // of FlushGPU, nil before the first
	flushed []byte         // what it reads

	wake, events *os.File // descriptors of the channel and the device, with deadlines
	wakeConn     syscall.RawConn
	kicked       atomic.Bool
	done         [64]verbs.Completion
	stop         []func() error // what Close undoes, the last first
	routines     sync.WaitGroup
	quit         chan struct{} // Close closes it
	told         sync.Once     // Options.Lost

	use     sync.Mutex // held by the call that posts, waits or closes
	closing atomic.Bool
	closed  bool // guarded by use

	mu     sync.Mutex // guards what follows
	over   bool       // no failure counts any more
	down   time.Time  // when the port went down; zero while it is up
	failed chan struct{}
	err    error // set before failed is closed
}

// Join makes this rank's end. It returns when all ranks have connected to it.
func Join(ctx context.Context, o Options) (_ *Mesh, err error) {
	m := &Mesh{o: o, s: o.Settings.complete(), api: o.API, peers: make([]peer, len(o.Hosts)), failed: make(chan struct{}), quit: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("rdma: rank %d on %s: %w", o.Rank, o.Hosts[o.Rank], errors.Join(err, m.release()))
		}
	}()
	if m.api == nil {
		if m.api, err = verbs.Load(); err != nil {
			return nil, err
		}
	}
	ports, err := usable(m.api, m.s)
	if err != nil {
		return nil, err
	}
	if m.port, err = pick(ports, o.Port); err != nil {
		return nil, err
	}
	if err := m.open(); err != nil {
		return nil, fmt.Errorf("%s: %w", m.port, err)
	}
	all, err := m.meet(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.port, err)
	}
	for r := range m.peers {
		if r != o.Rank {
			if err := m.connect(r, all[r]); err != nil {
				return nil, err
			}
		}
	}
	// Who writes before the other end is ready is refused.
	if err := m.barrier(ctx, "ready"); err != nil {
		return nil, err
	}
	m.routines.Add(2)
	go m.routineEvents()
	go m.routineIdle()
	o.Logger.Debug("rdma: joined", "rank", o.Rank, "port", m.port.String(), "queue pairs a peer", m.s.QPs, "slot bytes", m.slotSize)
	return m, nil
}

// Port is the port that this rank uses, as mlx5_0:1.
func (m *Mesh) Port() string { return m.port.name() }

// undo remembers how to release something.
func (m *Mesh) undo(f func() error) { m.stop = append(m.stop, f) }

// release undoes what open has done.
func (m *Mesh) release() error {
	var errs []error
	for i := len(m.stop) - 1; i >= 0; i-- {
		errs = append(errs, m.stop[i]())
	}
	m.stop = nil
	return errors.Join(errs...)
}

// open makes the device's objects: a protection domain, a completion queue with its
// channel, the slots, and the queue pairs to each peer.
func (m *Mesh) open() (err error) {
	api := m.api
	if m.device, err = api.Open(m.port.Device); err != nil {
		return err
	}
	m.undo(func() error { return api.Close(m.device) })
	if m.pd, err = api.AllocPD(m.device); err != nil {
		return err
	}
	m.undo(func() error { return api.DeallocPD(m.pd) })
	m.undo(m.forget)
	if m.channel, err = api.NewChannel(m.device); err != nil {
		return err
	}
	m.undo(func() error { return api.DestroyChannel(m.channel) })
	limits, err := api.Limits(m.device)
	if err != nil {
		return err
	}
	queues := (len(m.peers) - 1) * m.s.QPs
	entries := queues*(sendDepth+recvDepth) + 1 // the last is FlushGPU's
	switch {
	case entries > limits.CQEntries:
		return fmt.Errorf("%d ranks with %d queue pairs each need %d completions, and the device has %d: take fewer (comm.queue_pairs)", len(m.peers), m.s.QPs, entries, limits.CQEntries)
	case queues > limits.QPs:
		return fmt.Errorf("%d ranks need %d queue pairs, and the device has %d: take fewer (comm.queue_pairs)", len(m.peers), queues, limits.QPs)
	}
	if m.cq, err = api.NewCQ(m.device, entries, m.channel); err != nil {
		return err
	}
	m.undo(func() error { return api.DestroyCQ(m.cq) })
	if err := m.openFiles(); err != nil {
		return err
	}
	if err := m.openSlots(); err != nil {
		return err
	}
	for r := range m.peers {
		if r != m.o.Rank {
			if err := m.openPeer(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// openFiles gives the descriptors to Go's poller. They are doubles: libibverbs closes
// its own.
func (m *Mesh) openFiles() error {
	file := func(fd int, name string) (*os.File, error) {
		twin, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		f := os.NewFile(uintptr(twin), name)
		m.undo(f.Close)
		return f, nil
	}
	var err error
	if m.wake, err = file(m.channel.FD, "rdma completions"); err != nil {
		return err
	}
	if m.wakeConn, err = m.wake.SyscallConn(); err != nil {
		return err
	}
	m.events, err = file(m.device.EventFD, "rdma events")
	return err
}

// openSlots maps and registers the memory of slots and grants.
func (m *Mesh) openSlots() error {
	others := max(len(m.peers)-1, 1)
	m.slotSize = min(max(slotMemory/(2*slots*others)&^4095, slotLow), slotMost, m.port.MaxMessage)
	all := 2*(slots*m.slotSize+grants*grantSize)*others + grantSize
	var err error
	if m.memory, err = unix.Mmap(-1, 0, all, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("mapping %d bytes for messages: %w", all, err)
	}
	m.undo(func() error { return unix.Munmap(m.memory) })
	if m.region, err = m.register(m.memory); err != nil {
		return err
	}
	m.undo(func() error { return m.api.Deregister(m.region) })
	rest := m.memory
	take := func(n int) []byte {
		b := rest[:n:n]
		rest = rest[n:]
		return b
	}
	m.flushed = m.memory[all-grantSize:][:1]
	for r := range m.peers {
		if p := &m.peers[r]; r != m.o.Rank {
			p.inSlots, p.outSlots = take(slots*m.slotSize), take(slots*m.slotSize)
			p.inGrants, p.outGrants = take(grants*grantSize), take(grants*grantSize)
		}
	}
	return nil
}

// openPeer makes the queue pairs to rank r, with their receives.
func (m *Mesh) openPeer(r int) error {
	p := &m.peers[r]
	p.rank, p.host = r, m.o.Hosts[r]
	p.qps = make([]queue, m.s.QPs)
	for i := range p.qps {
		qp, err := m.api.NewQP(m.pd, m.cq, verbs.Capacity{Send: sendDepth, Recv: recvDepth})
		if err != nil {
			return fmt.Errorf("a queue pair for rank %d: %w", r, err)
		}
		m.undo(func() error { return m.api.DestroyQP(qp) })
		q := &p.qps[i]
		q.qp, q.psn, q.id = qp, rand.Uint32()&0xffffff, workID(r, i)
		a := verbs.Attr{Access: verbs.LocalWrite | verbs.RemoteWrite, PKeyIndex: m.s.PKey, Port: m.port.Number}
		if err := m.api.ModifyQP(qp, &a, verbs.ToInit); err != nil {
			return fmt.Errorf("a queue pair for rank %d, partition key of index %d: %w", r, m.s.PKey, err)
		}
		for range recvDepth {
			if err := m.api.PostRecv(qp, q.id|idRecv); err != nil {
				return fmt.Errorf("a receive for rank %d: %w", r, err)
			}
		}
	}
	return nil
}

func key(what string, rank int) string { return fmt.Sprintf("rdma/%s/%d", what, rank) }

// meet tells the other ranks where to write, and reads where they want it.
func (m *Mesh) meet(ctx context.Context) ([]hail, error) {
	me := hail{Device: m.port.Device, GID: fmt.Sprintf("%s (%s)", m.port.GID.Addr, m.port.GID.Type), Port: m.port.Number,
		Ethernet: m.port.Link == verbs.Ethernet, Addr: m.port.GID.Addr.As16(), LID: m.port.LID, MTU: uint8(m.port.MTU), MaxMessage: m.port.MaxMessage,
		Slots: slots, SlotSize: m.slotSize, QPs: m.s.QPs, RKey: m.region.RKey, Peers: make([]hailPeer, len(m.peers))}
	for r := range m.peers {
		if p := &m.peers[r]; r != m.o.Rank {
			at := &me.Peers[r]
			at.Slots, at.Grants = uint64(addressOf(p.inSlots)), uint64(addressOf(p.inGrants))
			for _, q := range p.qps {
				at.QPs, at.PSNs = append(at.QPs, q.qp.Num), append(at.PSNs, q.psn)
			}
		}
	}
	b, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	if err := m.o.Exchange.Set(ctx, key("end", m.o.Rank), b); err != nil {
		return nil, err
	}
	all := make([]hail, len(m.peers))
	for r := range all {
		b, err := m.o.Exchange.Wait(ctx, key("end", r))
		if err != nil {
			return nil, fmt.Errorf("rank %d on %s has not opened its device: %w", r, m.o.Hosts[r], err)
		}
		if err := json.Unmarshal(b, &all[r]); err != nil {
			return nil, fmt.Errorf("rank %d's entry %q: %w", r, b, err)
		}
		h := &all[r]
		switch {
		case h.Slots != slots || h.SlotSize != m.slotSize || len(h.Peers) != len(m.peers):
			return nil, fmt.Errorf("rank %d on %s has %d slots of %d bytes, this one %d of %d: another version of gorun, or a device that takes messages of %d bytes only", r, m.o.Hosts[r], h.Slots, h.SlotSize, slots, m.slotSize, h.MaxMessage)
		case h.QPs != m.s.QPs:
			return nil, fmt.Errorf("rank %d on %s has %d queue pairs a peer, this one %d: give all hosts the same settings (comm.queue_pairs, NCCL_IB_QPS_PER_CONNECTION)", r, m.o.Hosts[r], h.QPs, m.s.QPs)
		case h.Ethernet != me.Ethernet:
			return nil, fmt.Errorf("rank %d on %s uses %s, and this one %s: one of them is InfiniBand, the other Ethernet (choose with comm.ib_hca)", r, m.o.Hosts[r], h.Device, m.port.Device)
		}
	}
	return all, nil
}

// connect joins the queue pairs to rank r with those of its end.
func (m *Mesh) connect(r int, h hail) error {
	p := &m.peers[r]
	mine := h.Peers[m.o.Rank]
	p.device = fmt.Sprintf("%s port %d, GID %s", h.Device, h.Port, h.GID)
	p.most = min(m.port.MaxMessage, h.MaxMessage)
	p.slotsAt, p.grantsAt, p.rkey = mine.Slots, mine.Grants, h.RKey
	for i := range p.qps {
		q := &p.qps[i]
		a := verbs.Attr{Port: m.port.Number, MTU: min(m.port.MTU, verbs.MTU(h.MTU)), PeerQP: mine.QPs[i], PeerPSN: mine.PSNs[i],
			Peer: gidAddr(h.Addr), Global: h.Ethernet || !sameSubnet(h.Addr, m.port.GID.Addr.As16()), LID: h.LID, GID: m.port.GID.Index,
			Traffic: uint8(m.s.TrafficClass), RNRWait: 12,
			PSN: q.psn, Timeout: uint8(m.s.Timeout), Retries: uint8(m.s.Retries - 1), RNR: 7}
		err := m.api.ModifyQP(q.qp, &a, verbs.ToReady)
		if errors.Is(err, syscall.ETIMEDOUT) {
			return fmt.Errorf("no answer from the address of %s, from %s (%w): no route leads there, or its interface %s is down", p, m.port, err, h.Device)
		}
		if err == nil {
			err = m.api.ModifyQP(q.qp, &a, verbs.ToSend)
		}
		if err != nil {
			return fmt.Errorf("connecting %s to %s: %w", m.port, p, err)
		}
	}
	return nil
}

// sameSubnet compares the subnet prefixes of two GIDs of InfiniBand.
func sameSubnet(a, b [16]byte) bool { return [8]byte(a[:8]) == [8]byte(b[:8]) }

// barrier waits until all ranks have come as far.
func (m *Mesh) barrier(ctx context.Context, what string) error {
	if err := m.o.Exchange.Set(ctx, key(what, m.o.Rank), []byte{1}); err != nil {
		return err
	}
	for r := range m.peers {
		if _, err := m.o.Exchange.Wait(ctx, key(what, r)); err != nil {
			return fmt.Errorf("rank %d on %s has not connected: %w", r, m.o.Hosts[r], err)
		}
	}
	return nil
}

// PostSend hands b to peer, who gets it as its next message.
func (m *Mesh) PostSend(c *transport.Call, peer int, b []byte) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return err
	}
	p := &m.peers[peer]
	var r verbs.Region
	direct := len(b) >= directLeast
	if direct {
		r, direct = m.covers(b)
	}
	p.sends.push(&outgoing{header: c.Header, data: b, addr: addressOf(b), size: len(b), lkey: r.LKey, direct: direct})
	return m.advance(p)
}

// PostRecv says where the next message of peer goes.
func (m *Mesh) PostRecv(c *transport.Call, peer int, b []byte) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.cause(); err != nil {
		return err
	}
	p := &m.peers[peer]
	p.wants.push(&incoming{header: c.Header, data: b, addr: addressOf(b), size: len(b)})
	return m.receive(p)
}

// WaitSend waits until the oldest message to peer not waited for before needs its
// memory no more.
func (m *Mesh) WaitSend(c *transport.Call, peer int) error {
	m.use.Lock()
	defer m.use.Unlock()
	p := &m.peers[peer]
	msg := *p.sends.at(p.sends.first)
	if err := m.await(c, p, &msg.finished); err != nil {
		return err
	}
	p.sends.pop()
	return nil
}

// WaitRecv waits for the message of the oldest receive not waited for before.
func (m *Mesh) WaitRecv(c *transport.Call, peer int) error {
	m.use.Lock()
	defer m.use.Unlock()
	p := &m.peers[peer]
	msg := *p.wants.at(p.wants.first)
	if err := m.await(c, p, &msg.finished); err != nil {
		return err
	}
	p.wants.pop()
	return nil
}
