package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

var (
	sizes    = []int{1, 2, 3, 4, 7}
	reducers = []transport.Op{transport.Sum, transport.Avg, transport.Min, transport.Max, transport.Prod}
	counts   = []int{0, 1, 17, 1000, 4097, 99991} // one-shot, one chunk, several chunks
)

// allReduceMatrix runs every type and operation on private buffers at odd
// addresses, in place and not, and in the arena.
func allReduceMatrix(t *Team, counts []int) error {
	arena, err := t.Alloc(2 * (counts[len(counts)-1]*8 + 64))
	if err != nil {
		return err
	}
	seq := 0
	for _, dt := range dtype.All {
		for _, op := range reducers {
			for _, n := range counts {
				bytes := n * dt.Size()
				want := func(i int) float64 { return result(op, t.ranks, i) }
				src, guardSrc := odd(bytes)
				dst, guardDst := odd(bytes)
				half := len(arena) / 2
				off := (n % 5) * dt.Size()
				for _, b := range []struct {
					name     string
					dst, src []byte
				}{
					{"private", dst, src},
					{"private in place", src, src},
					{"arena in place", arena[off:][:bytes], arena[off:][:bytes]},
					{"arena", arena[half:][:bytes], arena[off:][:bytes]},
					{"arena to private", dst, arena[off:][:bytes]},
				} {
					what := fmt.Sprintf("%v %v of %d %v, %s", transport.AllReduce, op, n, dt, b.name)
					clear(b.dst)
					fillValues(dt, op, b.src, t.rank)
					c := call(transport.AllReduce, op, dt, seq)
					c.Count = uint64(n)
					seq++
					if err := t.AllReduceInto(c, b.dst, b.src); err != nil {
						return fmt.Errorf("%s: %w", what, err)
					}
					if err := expect(what, dt, b.dst, want); err != nil {
						return err
					}
				}
				if err := guardSrc(); err != nil {
					return err
				}
				if err := guardDst(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func TestAllReduceIsClosedForm(t *testing.T) {
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			teamOf(t, size, func(t *Team) error { return allReduceMatrix(t, counts) })
		})
	}
}

// Counters that start near their end wrap, and nobody notices.
func TestCountersWrap(t *testing.T) {
	const near = 0xfffffff0
	var joined, ready sync.WaitGroup
	joined.Add(3)
	ready.Add(3)
	teamOf(t, 3, func(team *Team) error {
		joined.Done()
		joined.Wait()
		team.ops.Store(near)
		team.chunks = near
		for _, k := range flagLines {
			atomic.StoreUint32(team.flag(team.rank, k), near)
		}
		atomic.StoreUint32(team.flag(team.rank, entered1), near-1)
		for r := range team.ranks {
			team.sent[r], team.received[r] = near, near
			atomic.StoreUint32(team.word(team.pairOff(team.rank, r, 0)), near)
			atomic.StoreUint32(team.word(team.pairOff(r, team.rank, 1)), near)
		}
		ready.Done()
		ready.Wait()
		if err := allReduceMatrix(team, []int{1, 99991}); err != nil {
			return err
		}
		if err := collectiveMatrix(team, []int{5, 70003}); err != nil {
			return err
		}
		if team.ops.Load() > 1<<31 || team.chunks > 1<<31 || team.sent[(team.rank+1)%3] > 1<<31 {
			return fmt.Errorf("no counter wrapped")
		}
		return nil
	})
}

// Where one rank's buffer is private or lies elsewhere, all ranks take the way
// that needs no common place.
func TestAllReduceOfBuffersAtDifferentPlaces(t *testing.T) {
	const n = 50000
	teamOf(t, 4, func(t *Team) error {
		arena, err := t.Alloc(8 * n)
		if err != nil {
			return err
		}
		for seq, odd := range []int{0, 1, 2, 3} {
			buf := arena[:4*n]
			if t.rank == odd {
				buf = arena[4*n:]
			}
			if t.rank == (odd+1)%4 && odd > 1 {
				buf = make([]byte, 4*n)
			}
			fillValues(dtype.F32, transport.Sum, buf, t.rank)
			c := call(transport.AllReduce, transport.Sum, dtype.F32, seq)
			c.Count = n
			if err := t.AllReduce(c, buf); err != nil {
				return err
			}
			if err := expect("sum", dtype.F32, buf, func(i int) float64 { return result(transport.Sum, 4, i) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestManyRanks(t *testing.T) {
	teamOf(t, maxRanks, func(team *Team) error {
		buf := make([]byte, 4*30001)
		for seq, n := range []int{1, 60, 30001} {
			fill(dtype.I32, buf[:4*n], func(k int) float64 { return float64(team.rank + k%period) })
			c := call(transport.AllReduce, transport.Sum, dtype.I32, seq)
			c.Count = uint64(n)
			if err := team.AllReduce(c, buf[:4*n]); err != nil {
				return err
			}
			want := func(k int) float64 { return float64(maxRanks*(maxRanks-1)/2 + maxRanks*(k%period)) }
			if err := expect("sum", dtype.I32, buf[:4*n], want); err != nil {
				return err
			}
		}
		return nil
	})
}

// Calls of all algorithms follow each other with new values and no barrier between,
// on more ranks than there may be cores: no rank overwrites what a slower one reads.
func TestCallsInARowDoNotMix(t *testing.T) {
	const n, rounds = 20000, 1500
	teamOf(t, 3, func(team *Team) error {
		arena, err := team.Alloc(4 * n)
		if err != nil {
			return err
		}
		own := make([]byte, 4*n)
		for i := range rounds {
			for _, buf := range [][]byte{own[:4], own[:1024], own[:1024], own[:16<<10], arena[:4<<10], own[:32]} {
				if i%50 == 0 && len(buf) > 1024 {
					buf = buf[:4*n]
				}
				fill(dtype.I32, buf, func(k int) float64 { return float64(i*(team.rank+1) + k%period) })
				c := call(transport.AllReduce, transport.Sum, dtype.I32, i)
				c.Count = uint64(len(buf) / 4)
				if err := team.AllReduce(c, buf); err != nil {
					return err
				}
				if err := expect(fmt.Sprintf("round %d", i), dtype.I32, buf, func(k int) float64 { return float64(i*6 + 3*(k%period)) }); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestNoAllocationsInACall(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes sync.Pool forget")
	}
	t.Run("alone", func(t *testing.T) { noAllocations(t, func(*Team) {}) })
	t.Run("with helpers", func(t *testing.T) { noAllocations(t, (*Team).withHelpers) })
}

func noAllocations(t *testing.T, prepare func(*Team)) {
	const n = 100000
	teamOf(t, 2, func(team *Team) error {
		prepare(team)
		arena, err := team.Alloc(4 * n)
		if err != nil {
			return err
		}
		own, all := make([]byte, 4*n), make([]byte, 8*n)
		counts := []int{n / 2, n / 2}
		seq := 0
		header := func(kind transport.Kind, count int) transport.Call {
			seq++
			c := call(kind, transport.Sum, dtype.F32, seq)
			c.Count = uint64(count)
			return c
		}
		for _, w := range []struct {
			name string
			do   func() error
		}{
			{"one-shot", func() error { return team.AllReduce(header(transport.AllReduce, 100), own[:400]) }},
			{"mailbox", func() error { return team.AllReduce(header(transport.AllReduce, n), own) }},
			{"push", func() error { return team.AllReduce(header(transport.AllReduce, n), arena) }},
			{"bf16", func() error {
				c := header(transport.AllReduce, 2*n)
				c.DType = dtype.BF16
				return team.AllReduce(c, arena)
			}},
			{"all-gather", func() error { return team.AllGather(header(transport.AllGather, n), all, own) }},
			{"reduce-scatter", func() error { return team.ReduceScatter(header(transport.ReduceScatter, n), own, all) }},
			{"broadcast", func() error { return team.Broadcast(header(transport.Broadcast, n), own, 0) }},
			{"reduce", func() error { return team.Reduce(header(transport.Reduce, n), own, own, 1) }},
			{"gather", func() error { return team.Gather(header(transport.Gather, n), all, own, 1) }},
			{"scatter", func() error { return team.Scatter(header(transport.Scatter, n), own, all, 0) }},
			{"all-to-all", func() error { return team.AllToAllV(header(transport.AllToAll, 0), own, all[:4*n], counts, counts) }},
			{"barrier", func() error { return team.Barrier(header(transport.Barrier, 0)) }},
		} {
			const rounds = 40
			var before, after runtime.MemStats
			for i := range rounds + 3 {
				if i == 3 {
					runtime.ReadMemStats(&before)
				}
				if err := w.do(); err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
			}
			runtime.ReadMemStats(&after)
			got := (after.Mallocs - before.Mallocs) / rounds // of both ranks together
			if got >= 1 {
				return fmt.Errorf("%s allocates %v times", w.name, got)
			}
		}
		return nil
	})
}
