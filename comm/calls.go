package comm

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// AllReduce replaces buf with op over all ranks' buf, in place.
//
//	buf [n] of dt
//
// Cost: direct or ring, 2(W-1)/W of buf sent per rank; small buffers one or log2(W)
// steps (see Algorithm). All ranks get the same bits.
// 16-bit floats are summed in float32 over all ranks and rounded once by oneshot,
// direct and doubling; ring rounds at every rank, twolevel once a level.
// On GPUs NCCL makes the sum, or, where the group's GPUs reach each other (GPUEngine
// tells), the group itself, in float32 over all ranks and rounded once: small ones by
// kernels, and large ones of f32, f16 and bf16 in memory from Alloc by kernels or copy
// engines that work on the arrays where they are. Such buffers lie at the same place on
// all ranks, at the same offset in memory of the same Alloc: ranks that differ get wrong
// sums, or wait until Options.Timeout where buf is from Alloc on some alone. Options.Check
// finds that.
// Stream: after prior work on s; buf is valid to later work on s.
// Failure: *DeadError on all ranks, buf is undefined.
func (g *Group) AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op Op) *Work {
	return g.AllReduceInto(s, buf, buf, dt, op)
}

// AllReduceInto is AllReduce from src [n] to dst [n], which is src or does not
// overlap it; on GPUs it is src on all ranks or on none.
func (g *Group) AllReduceInto(s device.Stream, dst, src device.Buffer, dt dtype.DType, op Op) *Work {
	return g.make(s, transport.AllReduce, dst, src, dt, op, -1, 1, 1)
}

// ReduceScatter gives rank r the sum (or other op) of all ranks' part r of src.
//
//	src [W*n], dst [n] of dt
//
// Alias: dst may be this rank's own part of src, else it does not overlap src.
// Cost: (W-1)/W of src sent per rank. Rounding, stream and failure as AllReduce. On
// GPUs src lies as buf there, and dst is this rank's own part of it on all ranks or on
// none.
func (g *Group) ReduceScatter(s device.Stream, dst, src device.Buffer, dt dtype.DType, op Op) *Work {
	return g.make(s, transport.ReduceScatter, dst, src, dt, op, -1, 1, g.Size())
}

// AllGather lays the ranks' src one after another, on every rank.
//
//	src [n], dst [W*n] of dt
//
// Alias: src may be this rank's own part of dst, else it does not overlap dst.
// Cost: (W-1)/W of dst sent per rank. Stream and failure as AllReduce. On GPUs large
// ones go by the copy engines where dst is from Alloc; it then lies at the same place on
// all ranks, as buf there.
func (g *Group) AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *Work {
	return g.make(s, transport.AllGather, dst, src, dt, Sum, -1, g.Size(), 1)
}

// Broadcast copies root's buf [n] to every rank's buf.
//
// Cost: tree, log2(W) steps, or chain, where each rank sends buf once.
// Stream and failure as AllReduce; on GPUs buf lies as AllGather's dst.
func (g *Group) Broadcast(s device.Stream, buf device.Buffer, dt dtype.DType, root int) *Work {
	return g.make(s, transport.Broadcast, buf, buf, dt, Sum, root, 1, 1)
}

// Reduce gives root the sum (or other op) of all ranks' src.
//
//	src [n]; dst [n] on root, not used elsewhere
//
// Alias: dst may be src. Cost: at most 2(W-1)/W of src sent per rank. Rounding,
// stream and failure as AllReduce.
func (g *Group) Reduce(s device.Stream, dst, src device.Buffer, dt dtype.DType, op Op, root int) *Work {
	if g.Rank() != root {
		dst = device.Buffer{}
	}
	return g.make(s, transport.Reduce, dst, src, dt, op, root, g.ifRoot(root), 1)
}

// Gather lays the ranks' src one after another in root's dst.
//
//	src [n]; dst [W*n] on root, not used elsewhere
//
// Alias: src may be root's own part of dst. Cost: src sent once.
// Stream and failure as AllReduce.
func (g *Group) Gather(s device.Stream, dst, src device.Buffer, dt dtype.DType, root int) *Work {
	if g.Rank() != root {
		dst = device.Buffer{}
	}
	return g.make(s, transport.Gather, dst, src, dt, Sum, root, g.ifRoot(root)*g.Size(), 1)
}

// Scatter gives rank r part r of root's src.
//
//	src [W*n] on root, not used elsewhere; dst [n]
//
// Alias: dst may be root's own part of src. Cost: root sends (W-1)/W of src.
// Stream and failure as AllReduce.
func (g *Group) Scatter(s device.Stream, dst, src device.Buffer, dt dtype.DType, root int) *Work {
	if g.Rank() != root {
		src = device.Buffer{}
	}
	return g.make(s, transport.Scatter, dst, src, dt, Sum, root, 1, g.ifRoot(root)*g.Size())
}

// AllToAll sends part p of src to rank p, who stores it as part r of dst, r being
// this rank.
//
//	src, dst [W*n] of dt
//
// Alias: none. Cost: (W-1)/W of src sent per rank. Stream and failure as AllReduce; on
// GPUs dst lies as AllGather's.
func (g *Group) AllToAll(s device.Stream, dst, src device.Buffer, dt dtype.DType) *Work {
	return g.make(s, transport.AllToAll, dst, src, dt, Sum, -1, g.Size(), g.Size())
}

// AllToAllV is AllToAll with parts of different sizes: sendCounts[p] elements of
// src go to rank p, recvCounts[p] elements of dst come from there. Parts lie one
// after another. Both slices belong to the call until it has ended.
func (g *Group) AllToAllV(s device.Stream, dst, src device.Buffer, recvCounts, sendCounts []int, dt dtype.DType) *Work {
	c := &call{sendCounts: sendCounts, recvCounts: recvCounts}
	c.Kind, c.DType, c.Root = transport.AllToAll, dt, -1
	for what, v := range map[string]struct {
		counts []int
		buf    device.Buffer
	}{"src": {sendCounts, src}, "dst": {recvCounts, dst}} {
		total := 0
		for _, n := range v.counts {
			if n < 0 {
				return g.refuse(s, c, fmt.Errorf("a count of %d elements", n))
			}
			total += n
		}
		if len(v.counts) != g.Size() || total*dt.Size() != v.buf.Len() {
			return g.refuse(s, c, fmt.Errorf("%d counts with %d elements of %s in all for %s, which has %d bytes; the group has %d ranks",
				len(v.counts), total, dt, what, v.buf.Len(), g.Size()))
		}
	}
	return g.submit(s, c, dst, src)
}

// Send sends buf [n] to rank to, who calls Recv with as many elements. The sends
// and receives of two ranks meet in their order; calls with other ranks do not
// matter to them. Large sends end when the peer receives: two ranks that first
// send to each other wait for each other.
// Stream and failure as AllReduce.
func (g *Group) Send(s device.Stream, buf device.Buffer, dt dtype.DType, to int) *Work {
	return g.between(s, transport.Send, device.Buffer{}, buf, dt, to)
}

// Recv receives what rank from sends with Send.
func (g *Group) Recv(s device.Stream, buf device.Buffer, dt dtype.DType, from int) *Work {
	return g.between(s, transport.Recv, buf, device.Buffer{}, dt, from)
}

// Barrier ends when all ranks have reached it on their streams.
func (g *Group) Barrier(s device.Stream) *Work {
	return g.make(s, transport.Barrier, device.Buffer{}, device.Buffer{}, dtype.U8, Sum, -1, 0, 0)
}

// Alloc returns n bytes, zeroed, that the group moves without copying them
// elsewhere first. In a group with a GPU they are its memory, from NCCL where that
// can be had. Else they are memory that the ranks of a host share, or plain memory
// where there is none to share. Every rank calls it with the same n, and what it gives
// to one AllReduce lies at the same offset of the same Alloc on all ranks. It waits
// for the calls on host memory enqueued before it. The memory lives until Close, by
// when all work that uses it has to be done.
func (g *Group) Alloc(n int) (device.Buffer, error) {
	c := &call{}
	c.Kind, c.DType, c.Root = transport.Alloc, dtype.U8, -1
	if n < 0 {
		return device.Buffer{}, g.refuse(nil, c, fmt.Errorf("cannot allocate %d bytes", n)).Err()
	}
	c.Count = uint64(n)
	if g.gpu != nil {
		return g.allocGPU(c)
	}
	var memory []byte
	c.memory = &memory
	if err := g.place(here{}, c).Err(); err != nil {
		return device.Buffer{}, err
	}
	return device.Host(memory), nil
}

// here is a stream that runs its work at once, on the goroutine that enqueues it.
type here struct{}

func (here) Do(_ string, f func() error) { _ = f() } // the Work has the error too
func (here) Err() error                  { return nil }

func (g *Group) ifRoot(root int) int {
	if g.Rank() == root {
		return 1
	}
	return 0
}

func (g *Group) between(s device.Stream, k transport.Kind, dst, src device.Buffer, dt dtype.DType, peer int) *Work {
	c := &call{peer: peer}
	c.Kind, c.DType, c.Root = k, dt, int32(peer)
	if peer < 0 || peer >= g.Size() || peer == g.Rank() {
		return g.refuse(s, c, fmt.Errorf("peer %d: want another rank below %d", peer, g.Size()))
	}
	if size := dt.Size(); size > 0 {
		c.Count = uint64((dst.Len() + src.Len()) / size)
	}
	return g.submit(s, c, dst, src)
}

// make builds a call whose dst has dstParts times, and whose src has srcParts
// times, the same number of elements, which is Count. 0 parts: not used here.
func (g *Group) make(s device.Stream, k transport.Kind, dst, src device.Buffer, dt dtype.DType, op Op, root, dstParts, srcParts int) *Work {
	c := &call{}
	c.Kind, c.DType, c.Op, c.Root = k, dt, op, int32(root)
	if root < -1 || root >= g.Size() || root == -1 && (k == transport.Broadcast || k == transport.Reduce || k == transport.Gather || k == transport.Scatter) {
		return g.refuse(s, c, fmt.Errorf("root %d: want a rank from 0 to %d", root, g.Size()-1))
	}
	if op > Prod {
		return g.refuse(s, c, fmt.Errorf("there is no operation %s", op))
	}
	if size := dt.Size(); size > 0 {
		n := -1
		for _, v := range [2]struct{ bytes, parts int }{{dst.Len(), dstParts}, {src.Len(), srcParts}} {
			if v.parts == 0 {
				continue
			}
			if v.bytes%(v.parts*size) != 0 || n >= 0 && v.bytes/(v.parts*size) != n {
				return g.refuse(s, c, fmt.Errorf("dst of %d and src of %d bytes do not hold %d and %d parts of the same number of elements of %s",
					dst.Len(), src.Len(), dstParts, srcParts, dt))
			}
			n = v.bytes / (v.parts * size)
		}
		c.Count = uint64(max(n, 0))
	}
	return g.submit(s, c, dst, src)
}

// submit checks what all calls have in common and enqueues c. The stream says whose
// memory it moves.
func (g *Group) submit(on device.Stream, c *call, dst, src device.Buffer) *Work {
	if c.DType.Size() == 0 {
		return g.refuse(on, c, fmt.Errorf("there is no element type %s", c.DType))
	}
	if s, ok := on.(*cuda.Stream); ok {
		own := *c // which leaves this goroutine's stack, unlike c
		return g.submitGPU(s, &own, dst, src)
	}
	s, ok := on.(stream)
	if !ok {
		return g.refuse(nil, c, fmt.Errorf("stream %v is neither one of the CPU nor one of a GPU", on))
	}
	if !dst.OnHost() || !src.OnHost() {
		return g.refuse(on, c, fmt.Errorf("the stream is one of the CPU, and dst or src lies on another device: all buffers of a call lie on the stream's device"))
	}
	if err := g.overlap(c, dst, src); err != nil {
		return g.refuse(on, c, err)
	}
	c.dst, c.src = dst.Bytes(), src.Bytes()
	return g.place(s, c)
}

// overlap refuses buffers that share memory in a way that a collective would spoil.
func (g *Group) overlap(c *call, dst, src device.Buffer) error {
	d, s := dst.Addr(), src.Addr()
	if dst.Len() == 0 || src.Len() == 0 || d+uintptr(dst.Len()) <= s || s+uintptr(src.Len()) <= d {
		return nil
	}
	own := uintptr(g.Rank() * c.bytes(int(c.Count)))
	ok := false
	switch c.Kind {
	case transport.AllReduce, transport.Broadcast, transport.Reduce:
		ok = d == s
	case transport.ReduceScatter, transport.Scatter:
		ok = d == s+own
	case transport.AllGather, transport.Gather:
		ok = s == d+own
	}
	if !ok {
		return fmt.Errorf("dst (%d bytes) and src (%d bytes) overlap", dst.Len(), src.Len())
	}
	return nil
}
