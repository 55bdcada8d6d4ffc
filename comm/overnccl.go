package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const i32 = dtype.I32

// overNCCL runs collectives on GPU memory by NCCL.
type overNCCL struct {
	lib      *nccl.Library
	comm     *nccl.Comm
	dev      *cuda.Device
	size, me int
	maxCTAs  int
	token    device.Buffer // one i32, what barriers sum

	sends, recvs []nccl.Part // of the call being made; used again
}

// joinNCCL makes the group's communicator.
func joinNCCL(ctx context.Context, g *Group, ex exchangeUnder, lib *nccl.Library) (*overNCCL, error) {
	id, err := shareID(ctx, g, ex, lib)
	if err != nil {
		return nil, err
	}
	n := &overNCCL{lib: lib, dev: g.o.gpu, size: g.o.Size, me: g.o.Rank, maxCTAs: g.o.MaxCTAs}
	if n.token, err = n.dev.Alloc(i32.Size()); err != nil {
		return nil, err
	}
	n.comm, err = lib.NewComm(ctx, n.dev, nccl.Options{
		Rank: g.o.Rank, Size: g.o.Size, ID: id, Name: g.o.Name, MaxCTAs: g.o.MaxCTAs, Patience: g.o.Timeout,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nccl %s (%s): %w", lib.Version, lib.Path, err), n.dev.Free(n.token))
	}
	return n, nil
}

// shareID gives every rank the communicator's id, which rank 0 makes.
func shareID(ctx context.Context, g *Group, ex exchangeUnder, lib *nccl.Library) (id nccl.ID, err error) {
	const key = "nccl"
	if g.o.Rank == 0 {
		if id, err = lib.NewID(); err != nil {
			return id, err
		}
		return id, ex.Set(ctx, key, id[:])
	}
	b, err := ex.Wait(ctx, key)
	if err != nil {
		return id, fmt.Errorf("waiting for rank 0 to start NCCL: %w", err)
	}
	if len(b) != len(id) {
		return id, fmt.Errorf("rank 0's id for NCCL has %d bytes, want %d", len(b), len(id))
	}
	return nccl.ID(b), nil
}

// ncclProblem is why the ranks cannot use NCCL together, nil where they can.
func ncclProblem(members []member) error {
	for r, m := range members {
		switch {
		case m.NoNCCL != "":
			return fmt.Errorf("rank %d on %s: %s", r, m.Host, m.NoNCCL)
		case m.NCCL != members[0].NCCL:
			return fmt.Errorf("rank %d on %s has NCCL %s, rank 0 on %s has %s: all ranks need the same release", r, m.Host, m.NCCL, members[0].Host, members[0].NCCL)
		}
		for p, other := range members[:r] {
			if m.GPU == other.GPU {
				return fmt.Errorf("ranks %d and %d on %s have the same GPU, %s: NCCL wants one for each rank", p, r, m.Host, m.GPU)
			}
		}
	}
	return nil
}

func (n *overNCCL) algorithm(*call) Algorithm { return NCCL }

func (n *overNCCL) String() string {
	ranks := "ranks"
	if n.size == 1 {
		ranks = "rank"
	}
	s := fmt.Sprintf("nccl %s: %d %s, %s", n.lib.Version, n.size, ranks, n.comm.Path())
	if n.maxCTAs > 0 {
		s += fmt.Sprintf(", up to %d CTAs", n.maxCTAs)
	}
	return s
}

func (n *overNCCL) failed() error { return n.comm.Failed() }
func (n *overNCCL) abort() error  { return n.comm.Abort(patience) }

func (n *overNCCL) close() error {
	return errors.Join(n.comm.Close(patience), n.dev.Free(n.token))
}

func (n *overNCCL) enqueue(s *cuda.Stream, c *call) (*cuda.Event, error) {
	return placed(s, n.make(s, c))
}

func (n *overNCCL) make(s *cuda.Stream, c *call) error {
	h, count := s.Handle(), int(c.Count)
	if c.Kind == transport.Barrier {
		return n.comm.AllReduce(h, n.token.Addr(), n.token.Addr(), 1, i32, Sum)
	}
	if c.to.Len() == 0 && c.from.Len() == 0 {
		return nil
	}
	if n.size == 1 && c.Op == Avg { // NCCL 2.28.3 leaves the end of a mean of one rank unwritten (4097 f32)
		return alone{}.make(s, c)
	}
	to, from, dt := c.to.Addr(), c.from.Addr(), c.DType
	switch c.Kind {
	case transport.AllReduce:
		return n.comm.AllReduce(h, to, from, count, dt, c.Op)
	case transport.ReduceScatter:
		return n.comm.ReduceScatter(h, to, from, count, dt, c.Op)
	case transport.AllGather:
		return n.comm.AllGather(h, to, from, count, dt)
	case transport.Broadcast:
		return n.comm.Broadcast(h, to, count, dt, int(c.Root))
	case transport.Reduce:
		return n.comm.Reduce(h, to, from, count, dt, c.Op, int(c.Root))
	}
	return n.exchange(s, c)
}

// exchange carries out the calls that only move data: every rank sends to others what
// it has for them. Empty parts are not sent, and not received.
func (n *overNCCL) exchange(s *cuda.Stream, c *call) error {
	n.sends, n.recvs = n.sends[:0], n.recvs[:0]
	root := int(c.Root)
	part := func(p int, b device.Buffer) nccl.Part {
		return nccl.Part{Peer: p, Addr: b.Addr(), N: b.Len() / c.DType.Size()}
	}
	send := func(p int, b device.Buffer) { n.sends = append(n.sends, part(p, b)) }
	recv := func(p int, b device.Buffer) { n.recvs = append(n.recvs, part(p, b)) }
	var own struct{ dst, src device.Buffer }
	switch c.Kind {
	case transport.Gather:
		if n.me != root {
			send(root, c.from)
			break
		}
		own.dst, own.src = c.part(c.to, nil, n.me), c.from
		for p := range n.size {
			if p != n.me {
				recv(p, c.part(c.to, nil, p))
			}
		}
	case transport.Scatter:
		if n.me != root {
			recv(root, c.to)
			break
		}
		own.dst, own.src = c.to, c.part(c.from, nil, n.me)
		for p := range n.size {
			if p != n.me {
				send(p, c.part(c.from, nil, p))
			}
		}
	case transport.AllToAll:
		own.dst, own.src = c.part(c.to, c.recvCounts, n.me), c.part(c.from, c.sendCounts, n.me)
		for p := range n.size {
			if p == n.me {
				continue
			}
			if out := c.part(c.from, c.sendCounts, p); out.Len() > 0 {
				send(p, out)
			}
			if in := c.part(c.to, c.recvCounts, p); in.Len() > 0 {
				recv(p, in)
			}
		}
	case transport.Send:
		if c.peer == root {
			send(c.peer, c.from)
		} else {
			recv(c.peer, c.to)
		}
	default:
		return fmt.Errorf("no such collective on GPU memory: %s", c.Header)
	}
	if own.dst.Addr() != own.src.Addr() {
		s.Copy(own.dst, own.src)
	}
	if len(n.sends)+len(n.recvs) == 0 {
		return s.Err()
	}
	return n.comm.Exchange(s.Handle(), n.sends, n.recvs, c.DType)
}

// part is rank p's part of b, where parts of the given counts, or all of Count
// elements, lie one after another.
func (c *call) part(b device.Buffer, counts []int, p int) device.Buffer {
	if counts == nil {
		n := c.bytes(int(c.Count))
		return b.Slice(p*n, (p+1)*n)
	}
	at := 0
	for _, n := range counts[:p] {
		at += n
	}
	return b.Slice(c.bytes(at), c.bytes(at+counts[p]))
}
