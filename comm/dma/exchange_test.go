package dma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// number is what rank has at element i: small, so that sums over eight ranks are exact in
// every type, and never the same in two neighbours.
func number(op transport.Op, rank, i int) float64 {
	if op == transport.Prod {
		return float64(1 + (rank+i)%2)
	}
	return float64((5*i + 3*rank) % 13)
}

// result is what op makes of element i over n ranks.
func result(op transport.Op, dt dtype.DType, n, i int) float64 {
	acc := number(op, 0, i)
	for r := 1; r < n; r++ {
		switch v := number(op, r, i); op {
		case transport.Sum, transport.Avg:
			acc += v
		case transport.Min:
			acc = min(acc, v)
		case transport.Max:
			acc = max(acc, v)
		case transport.Prod:
			acc *= v
		}
	}
	switch {
	case op != transport.Avg:
		return acc
	case dt == dtype.F64:
		return acc / float64(n)
	case dt.Float():
		return float64(float32(acc) / float32(n))
	}
	return math.Trunc(acc / float64(n))
}

// encoded is n elements of dt.
func encoded(dt dtype.DType, n int, at func(i int) float64) []byte {
	le, b := binary.LittleEndian, make([]byte, 0, n*dt.Size())
	for i := range n {
		switch v := at(i); dt {
		case dtype.F32:
			b = le.AppendUint32(b, math.Float32bits(float32(v)))
		case dtype.F64:
			b = le.AppendUint64(b, math.Float64bits(v))
		case dtype.F16:
			b = le.AppendUint16(b, dtype.F16From(float32(v)))
		case dtype.BF16:
			b = le.AppendUint16(b, dtype.BF16From(float32(v)))
		case dtype.I32:
			b = le.AppendUint32(b, uint32(int32(v)))
		case dtype.I64:
			b = le.AppendUint64(b, uint64(int64(v)))
		case dtype.U8:
			b = append(b, uint8(v))
		}
	}
	return b
}

// try is one collective on one rank, with closed forms.
type try struct {
	kind    transport.Kind
	op      transport.Op
	dt      dtype.DType
	count   int // elements of a part
	root    int
	offset  int // bytes from where memory is aligned
	inPlace bool
}

func (c try) String() string {
	return fmt.Sprintf("%s(%s, %s, %d, root %d), offset %d, in place %t", c.kind, c.op, c.dt, c.count, c.root, c.offset, c.inPlace)
}

// arrays is what rank gives to a try and gets: nil where it has none. same is where src
// lies in dst, or dst in src, where they overlap.
func (c try) arrays(rank, ranks int) (src, dst []byte) {
	has := func(r, n int) []byte {
		return encoded(c.dt, n, func(i int) float64 { return number(c.op, r, i) })
	}
	sums := func(from int) []byte {
		return encoded(c.dt, c.count, func(i int) float64 { return result(c.op, c.dt, ranks, from+i) })
	}
	part := func(b []byte, r int) []byte { n := c.count * c.dt.Size(); return b[r*n : (r+1)*n] }
	everybodys := func() (all []byte) {
		for r := range ranks {
			all = append(all, has(r, c.count)...)
		}
		return all
	}
	switch c.kind {
	case transport.AllReduce:
		return has(rank, c.count), sums(0)
	case transport.ReduceScatter:
		return has(rank, ranks*c.count), sums(rank * c.count)
	case transport.AllGather:
		return has(rank, c.count), everybodys()
	case transport.AllToAll:
		for r := range ranks {
			dst = append(dst, part(has(r, ranks*c.count), rank)...)
		}
		return has(rank, ranks*c.count), dst
	case transport.Broadcast:
		return has(rank, c.count), has(c.root, c.count)
	case transport.Reduce:
		if rank == c.root {
			dst = sums(0)
		}
		return has(rank, c.count), dst
	case transport.Gather:
		if rank == c.root {
			dst = everybodys()
		}
		return has(rank, c.count), dst
	case transport.Scatter:
		whole := has(c.root, ranks*c.count)
		if rank == c.root {
			src = whole
		}
		return src, part(whole, rank)
	}
	return nil, nil
}

// place lays the arrays into memory: src, then dst, or one within the other.
func (c try) place(memory device.Buffer, rank int, src, dst []byte) (from, to device.Buffer) {
	const apart = 256
	at := apart + c.offset
	own := rank * c.count * c.dt.Size()
	from = memory.Slice(at, at+len(src))
	switch {
	case c.kind == transport.Broadcast, c.inPlace && len(src) == len(dst) && c.kind != transport.AllToAll:
		return from, from
	case c.inPlace && (c.kind == transport.ReduceScatter || c.kind == transport.Scatter && len(src) > 0):
		return from, from.Slice(own, own+len(dst))
	case c.inPlace && (c.kind == transport.AllGather || c.kind == transport.Gather && len(dst) > 0):
		to = memory.Slice(at, at+len(dst))
		return to.Slice(own, own+len(src)), to
	}
	at += (len(src)+apart-1)/apart*apart + c.offset
	return from, memory.Slice(at, at+len(dst))
}

// run makes the try on one rank. Nothing around dst may change.
func (c try) run(team *Team, s *cuda.Stream, memory, host device.Buffer, call func(*cuda.Stream, *Call) error) error {
	src, dst := c.arrays(team.me, team.size)
	from, to := c.place(memory, team.me, src, dst)
	used := min(memory.Len(), 1024+4*c.offset+2*len(src)+2*len(dst))
	memory, host = memory.Slice(0, used), host.Slice(0, used)
	all := host.Bytes()
	copy(all, bytes.Repeat([]byte{0xa5, 0x5a, 0x17}, used/3+1))
	lay := func(b device.Buffer, what []byte) {
		if b.Len() > 0 {
			copy(all[b.Addr()-memory.Addr():], what)
		}
	}
	lay(from, src)
	s.Copy(memory, host)
	h := transport.Header{Kind: c.kind, Op: c.op, DType: c.dt, Root: int32(c.root), Count: uint64(c.count)}
	if err := call(s, &Call{Header: h, To: to, From: from}); err != nil {
		return fmt.Errorf("%v: %w", c, err)
	}
	if err := wait(s); err != nil {
		return fmt.Errorf("%v: %w", c, err)
	}
	lay(to, dst)
	want, got := bytes.Clone(all), all
	s.Copy(host, memory)
	if err := wait(s); err != nil {
		return fmt.Errorf("%v: %w", c, err)
	}
	for i := range want {
		if bytes.Equal(got, want) {
			break
		}
		if got[i] != want[i] {
			at := i - int(to.Addr()-memory.Addr())
			return fmt.Errorf("%v: byte %d of dst, which has %d, is %#x, want %#x", c, at, to.Len(), got[i], want[i])
		}
	}
	return nil
}

// tries is kinds × counts, with types, operations, roots, offsets and aliasing in turn,
// so that all pairs of values come up.
func tries(ranks int, counts ...int) []try {
	kinds := []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.AllToAll,
		transport.Broadcast, transport.Reduce, transport.Gather, transport.Scatter}
	ops := []transport.Op{transport.Sum, transport.Avg, transport.Min, transport.Max, transport.Prod}
	var all []try
	k := 0
	for _, kind := range kinds {
		for _, count := range counts {
			for _, dt := range dtype.All {
				all = append(all, try{
					kind: kind, op: ops[k%len(ops)], dt: dt, count: count, root: k % ranks,
					offset: []int{0, 1, 3, 8, 5}[k/2%5] * dt.Size(), inPlace: k/3%2 == 0,
				})
				k++
			}
		}
	}
	return all
}

// Every collective, way, type, operation, aliasing and start, on ranks that run at their
// own pace: no rank waits for another but in the calls.
func TestExchangeEmulated(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			counts := []int{0, 1, 2, 13, 300, 1001}
			if n == 8 {
				counts = []int{301}
			}
			teams := emulated(t, n)
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				team.limits = limits{marked: 500, oneShot: 2000}
				s, memory, host, free, err := room(team, 4*n*8*1001)
				if err != nil {
					return err
				}
				for _, c := range tries(n, counts...) {
					if err := c.run(team, s, memory, host, team.Exchange); err != nil {
						return errors.Join(err, team.Abort(err, time.Minute))
					}
				}
				return free()
			})
		})
	}
}

// room is a stream, n bytes of the GPU, as many of the host, and what releases them.
func room(team *Team, n int) (s *cuda.Stream, memory, host device.Buffer, free func() error, err error) {
	if s, err = newStream(team.d, "comm"); err != nil {
		return
	}
	if memory, err = team.d.Alloc(n); err != nil {
		return
	}
	host, err = team.d.AllocHost(n)
	return s, memory, host, func() error { return errors.Join(s.Close(), team.d.Free(memory), team.d.Free(host)) }, err
}

// A root that sends again and again, and hears of the others by tokens alone, does not
// overtake those that receive.
func TestRootsDoNotRunAheadEmulated(t *testing.T) {
	const n, calls = 3, 30
	for _, kind := range []transport.Kind{transport.Broadcast, transport.Scatter} {
		for _, l := range []limits{{marked: 1 << 16}, {}} {
			teams := emulated(t, n)
			gone := make(chan struct{})
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				team.limits = l
				s, memory, host, free, err := room(team, 1<<14)
				if err != nil {
					return err
				}
				if rank == 0 {
					close(gone)
				}
				<-gone
				for i := range calls {
					c := try{kind: kind, dt: dtype.I32, count: 100 + i}
					if err := c.run(team, s, memory, host, team.Exchange); err != nil {
						return errors.Join(err, team.Abort(err, time.Minute))
					}
				}
				return free()
			})
		}
	}
}

// Arrays of several rounds, which take both halves of the memory by turns.
func TestRoundsEmulated(t *testing.T) {
	const n = 2
	teams := emulated(t, n)
	const count = slotsTogether/4 + 333
	ranks(t, n, func(rank int) error {
		s, memory, host, free, err := room(teams[rank], 4*count+4096)
		if err != nil {
			return err
		}
		for _, kind := range []transport.Kind{transport.AllReduce, transport.Broadcast} {
			c := try{kind: kind, dt: dtype.F32, count: count, offset: 4, inPlace: true}
			if err := c.run(teams[rank], s, memory, host, teams[rank].Exchange); err != nil {
				return errors.Join(err, teams[rank].Abort(err, time.Minute))
			}
		}
		return free()
	})
}

// Random numbers of 16 bits: every rank has the same bits, those of a sum in f32 in the
// order of the ranks.
func TestSameBitsEmulated(t *testing.T) {
	const n, count = 3, 3000
	teams := emulated(t, n)
	random := func(rank int) []float32 {
		r := rand.New(rand.NewPCG(7, uint64(rank)))
		v := make([]float32, count)
		for i := range v {
			v[i] = dtype.BF16To(dtype.BF16From(float32(r.NormFloat64() * math.Exp(4*r.NormFloat64()))))
		}
		return v
	}
	want := make([]byte, 0, 2*count)
	all := [n][]float32{random(0), random(1), random(2)}
	for i := range count {
		sum := all[0][i] + all[1][i]
		sum += all[2][i]
		want = binary.LittleEndian.AppendUint16(want, dtype.BF16From(sum))
	}
	for _, l := range []limits{{marked: 1 << 16, oneShot: 1 << 16}, {marked: 0, oneShot: 1 << 16}, {marked: 0, oneShot: 0}} {
		ranks(t, n, func(rank int) error {
			team := teams[rank]
			team.limits = l
			s, memory, host, free, err := room(team, 2*count)
			if err != nil {
				return err
			}
			for i, v := range all[rank] {
				binary.LittleEndian.PutUint16(host.Bytes()[2*i:], dtype.BF16From(v))
			}
			s.Copy(memory, host)
			h := transport.Header{Kind: transport.AllReduce, Op: transport.Sum, DType: dtype.BF16, Root: -1, Count: count}
			if err := team.Exchange(s, &Call{Header: h, To: memory, From: memory}); err != nil {
				return err
			}
			if got := view(memory); !bytes.Equal(got, want) {
				return fmt.Errorf("%+v: the sum has other bits", l)
			}
			return free()
		})
	}
}

// wait waits for the stream's work.
func wait(s *cuda.Stream) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Synchronize(ctx)
}
