package rdma

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// loop is a queue pair that is joined to itself.
type loop struct {
	qp     *verbs.QP
	under  bool
	failed *failure
}

// idFlush is the work of the loop.
const idFlush = 1 << 62

// flushWithin bounds a read within one machine.
const flushWithin = 10 * time.Second

// FlushGPU makes what the card has written to memory of a GPU, as Received tells, visible to
// the GPU, where GPUs do not see to that themselves: the card reads a byte of it, behind its
// writes. It waits for that, some microseconds.
func (m *Mesh) FlushGPU(g GPUMemory) error {
	m.use.Lock()
	defer m.use.Unlock()
	if err := m.mayPost(g, 0, 1); err != nil {
		return err
	}
	if m.loop == nil {
		if err := m.openLoop(); err != nil {
			return m.end(fmt.Errorf("rdma: rank %d on %s, %s: a queue pair to itself, by which writes to a GPU are flushed: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, err))
		}
	}
	m.loop.under = true
	read := verbs.Send{ID: idFlush, Op: verbs.Read, Signaled: true, Local: addressOf(m.flushed), LKey: m.region.LKey, Bytes: len(m.flushed),
		Remote: uint64(g.buffer.Addr()), RKey: g.RKey}
	if err := m.api.PostSend(m.loop.qp, &read); err != nil {
		return m.end(fmt.Errorf("rdma: posting a read of the GPU's memory: %w", err))
	}
	for until := time.Now().Add(flushWithin); m.loop.under; {
		if err := m.progress(); err != nil {
			return err
		}
		if err := m.cause(); err != nil {
			return err
		}
		if m.loop.under && time.Now().After(until) {
			return m.end(fmt.Errorf("rdma: rank %d on %s, %s: a read of the GPU's memory has not ended after %s", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, flushWithin))
		}
	}
	if m.loop.failed != nil {
		return m.end(fmt.Errorf("rdma: rank %d on %s, %s: reading the GPU's memory, which flushes writes to it: %w", m.o.Rank, m.o.Hosts[m.o.Rank], m.port, m.loop.failed))
	}
	return nil
}

func (m *Mesh) openLoop() error {
	qp, err := m.api.NewQP(m.pd, m.cq, verbs.Capacity{Send: 1, Recv: 1})
	if err != nil {
		return err
	}
	m.undo(func() error { return m.api.DestroyQP(qp) })
	psn, addr := rand.Uint32()&0xffffff, m.port.GID.Addr
	a := verbs.Attr{Access: verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead, PKeyIndex: m.s.PKey, Port: m.port.Number, MTU: m.port.MTU, PeerQP: qp.Num, PeerPSN: psn, PSN: psn,
		Peer: addr, Global: m.port.Link == verbs.Ethernet, LID: m.port.LID, GID: m.port.GID.Index, Traffic: uint8(m.s.TrafficClass),
		RNRWait: 12, Timeout: uint8(m.s.Timeout), Retries: uint8(m.s.Retries - 1), RNR: 7}
	for _, to := range []verbs.Mask{verbs.ToInit, verbs.ToReady, verbs.ToSend} {
		if err := m.api.ModifyQP(qp, &a, to); err != nil {
			return err
		}
	}
	m.loop = &loop{qp: qp}
	return nil
}
