package dma

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Every collective by kernels, in every way, type, operation, aliasing and start, and
// arrays of several rounds; and then the same by copy engines where they make it.
func TestExchangeOnGPUs(t *testing.T) {
	const large = slotsTogether/4*2 + 333
	onMemory(t, 3*4*large+4096, func(r *rig) error {
		set := r.team.limits
		for _, l := range []limits{set, {marked: 500, oneShot: 2000}, {}} {
			r.team.limits = l
			for _, c := range tries(r.team.size, 0, 1, 2, 13, 300, 1001, 65537) {
				n := 2 * 8 * r.team.size * (c.count + 100)
				if err := c.run(r.team, r.s, r.memory.Slice(0, n+4096), r.host.Slice(0, n+4096), r.team.Exchange); err != nil {
					return fmt.Errorf("%+v: %w", l, err)
				}
			}
		}
		r.team.limits = set
		for _, kind := range []transport.Kind{transport.AllReduce, transport.Broadcast} {
			c := try{kind: kind, dt: dtype.F32, count: large, offset: 4}
			if err := c.run(r.team, r.s, r.memory, r.host, r.team.Exchange); err != nil {
				return err
			}
		}
		for _, kind := range []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.Broadcast, transport.AllToAll} {
			for _, count := range []int{8, 4096, 1 << 20} {
				c := try{kind: kind, dt: dtype.BF16, count: count, root: 1, inPlace: true}
				if err := c.run(r.team, r.s, r.memory, r.host, r.team.byCopies); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// A thousand calls without a wait between them, of all sizes and both kinds, whose
// results depend on each other: nobody overtakes anybody.
func TestCallsInARowOnGPUs(t *testing.T) {
	const count = 1 << 18
	onMemory(t, 4*count, func(r *rig) error {
		one := make([]float32, count)
		for i := range one {
			one[i] = 1
		}
		r.give(dtype.F32, r.memory, one)
		for i := range 1000 {
			b := r.memory.Slice(0, 4*(count>>(i%19)))
			h := transport.Header{Kind: transport.AllReduce, Op: transport.Avg, DType: dtype.F32, Root: -1, Count: uint64(b.Len() / 4)}
			c := &Call{Header: h, To: b, From: b}
			call := r.team.Exchange
			if i%7 == 3 {
				call = r.team.byCopies
			}
			if err := call(r.s, c); err != nil {
				return err
			}
		}
		return r.check(dtype.F32, r.memory, one)
	})
}

// BenchmarkExchange is the time of a call by kernels and by copy engines, for the limits
// in choose.go and those of comm: all calls are enqueued one behind the other.
func BenchmarkExchange(b *testing.B) {
	for _, kind := range []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather} {
		for _, way := range []struct {
			name   string
			limits limits
			most   int
		}{
			{"marked", limits{marked: markedMost}, markedMost},
			{"one-shot", limits{oneShot: slotsTogether / 2}, slotsTogether / 2},
			{"two-shot", limits{}, 64 << 20},
			{"direct", limits{}, 1 << 30},
			{"copies", limits{}, 1 << 30},
		} {
			if way.name == "direct" && kind == transport.AllGather {
				continue
			}
			for size := 1 << 10; size <= way.most; size *= 4 {
				b.Run(fmt.Sprintf("%s/%s/%d", kind, way.name, size), func(b *testing.B) { benchmark(b, kind, way.name, way.limits, size, 0) })
			}
		}
	}
}

// BenchmarkBlocks is the time of large sums in place by the blocks that they take.
func BenchmarkBlocks(b *testing.B) {
	for _, kind := range []transport.Kind{transport.AllReduce, transport.ReduceScatter} {
		for _, size := range []int{25 << 20, 100 << 20, 1 << 30} {
			for _, blocks := range []int{8, 16, 32, 48, 64, 96, 128} {
				b.Run(fmt.Sprintf("%s/%d/%d", kind, size, blocks), func(b *testing.B) { benchmark(b, kind, "direct", limits{}, size, blocks) })
			}
		}
	}
}

// benchmark times calls of size bytes in all; by as many blocks as there are usually, for
// blocks of 0.
func benchmark(b *testing.B, kind transport.Kind, way string, l limits, size, blocks int) {
	onMemory(b, size, func(r *rig) error {
		r.team.limits = l
		if blocks > 0 {
			r.team.most = blocks
		}
		n := r.team.size
		c := &Call{To: r.memory, From: r.memory}
		c.Kind, c.DType, c.Root, c.Count = kind, dtype.F32, -1, uint64(size/4)
		switch kind {
		case transport.ReduceScatter:
			c.To, c.Count = r.team.own(r.memory), c.Count/uint64(n)
		case transport.AllGather:
			c.From, c.Count = r.team.own(r.memory), c.Count/uint64(n)
		}
		call := r.team.Exchange
		switch way {
		case "copies":
			call = r.team.byCopies
		case "direct":
			call = r.team.Direct
		}
		rounds := min(max(1<<28/size, 20), 500)
		const warm = 5
		for range warm {
			if err := call(r.s, c); err != nil {
				return err
			}
		}
		begin := r.s.Record()
		for range rounds {
			if err := call(r.s, c); err != nil {
				return err
			}
		}
		end := r.s.Record()
		if err := end.Sync(r.ctx); err != nil {
			return err
		}
		took, err := end.Since(begin)
		if r.team.me == 0 {
			share := float64(n-1) / float64(n)
			if kind == transport.AllReduce {
				share *= 2
			}
			b.ReportMetric(took.Seconds()/float64(rounds)*1e6, "µs/call")
			b.ReportMetric(float64(size)*share*float64(rounds)/took.Seconds()/1e9, "busbw-GB/s")
			b.ReportMetric(0, "ns/op")
		}
		return err
	})
}

// Sums of arrays where they are, of all types, operations and sizes.
func TestDirectOnGPUs(t *testing.T) {
	const most = 1<<20 + 16
	onMemory(t, 6*8*most, func(r *rig) error {
		for _, c := range directTries(r.team.size, 0, 1, 13, 16, 304, 65536, most) {
			if err := c.run(r.team, r.s, r.memory, r.host, r.team.Direct); err != nil {
				return err
			}
		}
		return nil
	})
}
