package commtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Case is what one round of all collectives is tried with.
type Case struct {
	Count   int // elements; of one rank's part where a collective has parts
	DType   dtype.DType
	Op      comm.Op
	InPlace bool
	Root    int
}

func (c Case) String() string {
	return fmt.Sprintf("%d %s %s root %d in place %v", c.Count, c.DType, c.Op, c.Root, c.InPlace)
}

// Cases covers counts, types, operations, roots and aliasing for n ranks: each
// count with each type, the rest in turn, so that every pair of values comes up.
func Cases(n int, counts ...int) []Case {
	ops := []comm.Op{comm.Sum, comm.Avg, comm.Min, comm.Max, comm.Prod}
	var out []Case
	for i, count := range counts {
		for j, dt := range dtype.All {
			k := i*len(dtype.All) + j
			out = append(out, Case{count, dt, ops[k%len(ops)], (k/2+i)%2 == 0, (k + i) % n})
		}
	}
	return out
}

// Collectives makes every collective once on this rank, on memory of the stream's
// device, and compares the results with closed forms. Devices other than the CPU need
// Reserve.
func Collectives(ctx context.Context, g *comm.Group, s device.Stream, c Case) error {
	r := round{ctx: ctx, g: g, s: s, Case: c, n: g.Size(), me: g.Rank()}
	for _, f := range []struct {
		name string
		run  func() error
	}{
		{"AllReduce", r.allReduce}, {"ReduceScatter", r.reduceScatter}, {"AllGather", r.allGather},
		{"Broadcast", r.broadcast}, {"Reduce", r.reduce}, {"Gather", r.gather}, {"Scatter", r.scatter},
		{"AllToAll", r.allToAll}, {"AllToAllV", r.allToAllV}, {"Send and Recv", r.pairs}, {"Barrier", r.barrier},
	} {
		if err := f.run(); err != nil {
			return fmt.Errorf("%s of %s on rank %d of %d: %w", f.name, c, r.me, r.n, err)
		}
	}
	return nil
}

type round struct {
	Case
	ctx   context.Context
	g     *comm.Group
	s     device.Stream
	n, me int
	there []array // arrays of the call being made, on another device than the CPU
	used  int     // bytes of what is reserved there
}

// mine is count elements of rank r, starting at element from.
func (r *round) mine(rank, from, count int) []byte {
	return encode(r.DType, count, func(i int) float64 { return value(r.Op, rank, from+i) })
}

// sums is the reduction of count elements, starting at element from.
func (r *round) sums(from, count int) []byte {
	return encode(r.DType, count, func(i int) float64 { return reduced(r.Op, r.DType, r.n, from+i) })
}

// parts lays every rank's count elements one after another.
func (r *round) parts() []byte {
	var all []byte
	for p := range r.n {
		all = append(all, r.mine(p, 0, r.Count)...)
	}
	return all
}

func (r *round) size() int { return r.Count * r.DType.Size() }

// part is rank p's part of b.
func (r *round) part(b []byte, p int) []byte { return b[p*r.size():][:r.size():r.size()] }

// garbage is where a result goes: nothing that could pass for one.
func garbage(n int) []byte { return bytes.Repeat([]byte{0xa5}, n) }

// expect waits for w and compares pairs of arrays: what is there, and what should be.
func (r *round) expect(w *comm.Work, arrays ...[]byte) error {
	if err := w.Wait(r.ctx); err != nil {
		return err
	}
	if err := r.fetch(); err != nil {
		return err
	}
	for i := 0; i < len(arrays); i += 2 {
		if err := differ(r.DType, arrays[i], arrays[i+1]); err != nil {
			return fmt.Errorf("%s: %w", [...]string{"dst", "src"}[i/2], err)
		}
	}
	return nil
}

func (r *round) allReduce() error {
	src := r.mine(r.me, 0, r.Count)
	if r.InPlace {
		return r.expect(r.g.AllReduce(r.s, r.buf(src), r.DType, r.Op), src, r.sums(0, r.Count))
	}
	dst := garbage(len(src))
	w := r.g.AllReduceInto(r.s, r.buf(dst), r.buf(src), r.DType, r.Op)
	return r.expect(w, dst, r.sums(0, r.Count), src, r.mine(r.me, 0, r.Count))
}

func (r *round) reduceScatter() error {
	src := r.mine(r.me, 0, r.n*r.Count)
	dst := garbage(r.size())
	if r.InPlace {
		dst = r.part(src, r.me)
	}
	whole := r.buf(src) // which dst may be a part of
	w := r.g.ReduceScatter(r.s, r.buf(dst), whole, r.DType, r.Op)
	want := r.sums(r.me*r.Count, r.Count)
	keep := r.mine(r.me, 0, r.n*r.Count)
	if r.InPlace {
		copy(r.part(keep, r.me), want)
	}
	return r.expect(w, dst, want, src, keep)
}

func (r *round) allGather() error {
	dst, src := garbage(r.n*r.size()), r.mine(r.me, 0, r.Count)
	if r.InPlace {
		copy(r.part(dst, r.me), src)
		src = r.part(dst, r.me)
	}
	return r.expect(r.g.AllGather(r.s, r.buf(dst), r.buf(src), r.DType), dst, r.parts())
}

func (r *round) broadcast() error {
	buf := r.mine(r.me, 0, r.Count)
	return r.expect(r.g.Broadcast(r.s, r.buf(buf), r.DType, r.Root), buf, r.mine(r.Root, 0, r.Count))
}

func (r *round) reduce() error {
	src := r.mine(r.me, 0, r.Count)
	dst := garbage(len(src))
	if r.InPlace {
		dst = src
	}
	w := r.g.Reduce(r.s, r.buf(dst), r.buf(src), r.DType, r.Op, r.Root)
	if r.me == r.Root {
		return r.expect(w, dst, r.sums(0, r.Count))
	}
	if !r.InPlace {
		return r.expect(w, dst, garbage(len(src)), src, r.mine(r.me, 0, r.Count))
	}
	return r.expect(w, src, r.mine(r.me, 0, r.Count))
}

func (r *round) gather() error {
	src := r.mine(r.me, 0, r.Count)
	if r.me != r.Root {
		return r.expect(r.g.Gather(r.s, device.Buffer{}, r.buf(src), r.DType, r.Root), src, r.mine(r.me, 0, r.Count))
	}
	dst := garbage(r.n * r.size())
	if r.InPlace {
		copy(r.part(dst, r.me), src)
		src = r.part(dst, r.me)
	}
	return r.expect(r.g.Gather(r.s, r.buf(dst), r.buf(src), r.DType, r.Root), dst, r.parts())
}

func (r *round) scatter() error {
	dst := garbage(r.size())
	if r.me != r.Root {
		return r.expect(r.g.Scatter(r.s, r.buf(dst), device.Buffer{}, r.DType, r.Root), dst, r.mine(r.me, 0, r.Count))
	}
	src := r.parts()
	if r.InPlace {
		dst = r.part(src, r.me)
	}
	whole := r.buf(src)
	w := r.g.Scatter(r.s, r.buf(dst), whole, r.DType, r.Root)
	return r.expect(w, dst, r.mine(r.me, 0, r.Count), src, r.parts())
}

func (r *round) allToAll() error {
	src := r.mine(r.me, 0, r.n*r.Count)
	var want []byte
	for p := range r.n {
		want = append(want, r.mine(p, r.me*r.Count, r.Count)...)
	}
	dst := garbage(len(want))
	w := r.g.AllToAll(r.s, r.buf(dst), r.buf(src), r.DType)
	return r.expect(w, dst, want, src, r.mine(r.me, 0, r.n*r.Count))
}

// allToAllV sends more to later ranks, and nothing from the last rank to the first.
func (r *round) allToAllV() error {
	count := func(from, to int) int {
		if from == r.n-1 && to == 0 {
			return 0
		}
		return r.Count + 2*from + to
	}
	var send, recv []int
	var src, want []byte
	for p := range r.n {
		send, recv = append(send, count(r.me, p)), append(recv, count(p, r.me))
		src = append(src, r.mine(r.me, p, count(r.me, p))...)
		want = append(want, r.mine(p, r.me, count(p, r.me))...)
	}
	dst := garbage(len(want))
	return r.expect(r.g.AllToAllV(r.s, r.buf(dst), r.buf(src), recv, send, r.DType), dst, want)
}

// pairs sends from even to odd ranks, and back, while the last of an odd number
// of ranks looks on.
func (r *round) pairs() error {
	peer := r.me ^ 1
	if peer >= r.n {
		return nil
	}
	out, in := r.mine(r.me, 0, r.Count), garbage(r.size())
	send := func() *comm.Work { return r.g.Send(r.s, r.buf(out), r.DType, peer) }
	recv := func() *comm.Work { return r.g.Recv(r.s, r.buf(in), r.DType, peer) }
	order := []func() *comm.Work{send, recv}
	if r.me > peer {
		slices.Reverse(order)
	}
	first := order[0]()
	last := order[1]()
	if err := first.Wait(r.ctx); err != nil {
		return err
	}
	return r.expect(last, in, r.mine(peer, 0, r.Count))
}

func (r *round) barrier() error { return r.g.Barrier(r.s).Wait(r.ctx) }

// array is a host array and its place on a device.
type array struct {
	host []byte
	buf  device.Buffer
}

// reserved is memory for the arrays of Collectives, by stream.
var reserved sync.Map

// Reserve gives Collectives n bytes on the stream's device, for all calls on it. Where
// one process has several GPUs, to allocate or to free memory may wait for what runs
// on any of them, and that for this rank; so all ranks do this first, and then meet.
func Reserve(s device.Stream, n int) error {
	buf, err := s.Device().Alloc(n)
	if err == nil {
		reserved.Store(s, buf)
	}
	return err
}

// buf returns where the call finds b: b itself on the CPU, a copy elsewhere. b may be
// a part of an array that was asked for before.
func (r *round) buf(b []byte) device.Buffer {
	if r.s.Device().Kind() == device.CPU || len(b) == 0 {
		return device.Host(b)
	}
	at := device.Host(b).Addr()
	for _, a := range r.there {
		if from := device.Host(a.host).Addr(); from <= at && at+uintptr(len(b)) <= from+uintptr(len(a.host)) {
			return a.buf.Slice(int(at-from), int(at-from)+len(b))
		}
	}
	all, ok := reserved.Load(r.s)
	if !ok {
		panic("commtest: Collectives on a device without Reserve")
	}
	const align = 256
	a := array{b, all.(device.Buffer).Slice(r.used, r.used+len(b))}
	r.used += (len(b) + align - 1) &^ (align - 1)
	r.s.Copy(a.buf, device.Host(b))
	r.there = append(r.there, a)
	return a.buf
}

// fetch brings the arrays of the call back to the host.
func (r *round) fetch() error {
	for _, a := range r.there {
		r.s.Copy(device.Host(a.host), a.buf)
	}
	if len(r.there) == 0 {
		return nil
	}
	r.there, r.used = nil, 0
	return r.s.Synchronize(r.ctx)
}
