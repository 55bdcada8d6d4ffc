package comm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

var ctx = context.Background()

// One call's place in the group's order counts, not its stream: two streams take
// turns, and two groups do not disturb each other.
func TestStreamsAndGroupsAreIndependent(t *testing.T) {
	everywhere(t, 4, comm.Options{}, func(t *testing.T, world []*comm.Group) {
		commtest.Run(t, world, func(g *comm.Group, s *device.CPUStream) error {
			pair, err := g.Sub([]int{g.Rank() &^ 1, g.Rank() | 1})
			if err != nil {
				return err
			}
			other := device.NewCPUStream("other", nil)
			const rounds = 50
			a, b, c := make([]int64, 3000), make([]int64, 5), make([]int64, 700)
			a[0], b[0], c[0] = 1, 1, 1
			for i := range rounds {
				first, second := s, other
				if (i+g.Rank())%2 == 0 { // each rank mixes its streams differently
					first, second = other, s
				}
				g.AllReduce(first, device.Of(a), dtype.I64, comm.Max)
				g.AllReduce(second, device.Of(b), dtype.I64, comm.Max)
				pair.AllReduce(other, device.Of(c), dtype.I64, comm.Max)
			}
			g.AllReduce(s, device.Of(a), dtype.I64, comm.Sum)
			pair.AllReduce(other, device.Of(c), dtype.I64, comm.Sum)
			if err := errors.Join(s.Synchronize(ctx), other.Close()); err != nil {
				return err
			}
			if a[0] != 4 || b[0] != 1 || c[0] != 2 {
				return fmt.Errorf("got %d %d %d, want 4 1 2", a[0], b[0], c[0])
			}
			return pair.Close()
		})
	})
}

// Ranks of a part, in an order of their own, beside the whole.
func TestSub(t *testing.T) {
	everywhere(t, 4, comm.Options{}, func(t *testing.T, world []*comm.Group) {
		commtest.Run(t, world, func(g *comm.Group, s *device.CPUStream) error {
			if _, err := g.Sub([]int{g.Rank(), g.Rank()}); err == nil {
				return errors.New("a rank twice was accepted")
			}
			if _, err := g.Sub([]int{(g.Rank() + 1) % 4}); err == nil {
				return errors.New("a group without its maker was accepted")
			}
			if g.Rank() == 1 {
				return g.Barrier(s).Wait(ctx)
			}
			for range 2 { // the same ranks may form a group again
				sub, err := g.Sub([]int{3, 0, 2})
				if err != nil {
					return err
				}
				if want := slices.Index([]int{3, 0, 2}, g.Rank()); sub.Rank() != want || sub.Size() != 3 || sub.Host(0) != g.Host(3) {
					return fmt.Errorf("rank %d is %d of %d on %s", g.Rank(), sub.Rank(), sub.Size(), sub.Host(0))
				}
				all := make([]int32, 3)
				if err := sub.AllGather(s, device.Of(all), device.Of([]int32{int32(g.Rank())}), dtype.I32).Wait(ctx); err != nil {
					return err
				}
				if !slices.Equal(all, []int32{3, 0, 2}) {
					return fmt.Errorf("got %v", all)
				}
				if err := sub.Close(); err != nil {
					return err
				}
			}
			return g.Barrier(s).Wait(ctx)
		})
	})
}

// All ranks hold the same bits, and a second run gives them again.
func TestSumsAreTheSameEverywhereAndAlways(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, o := range []comm.Options{
		{Transport: "local", Algo: comm.OneShot}, {Transport: "local", Algo: comm.Direct}, {Transport: "local", Algo: comm.Ring},
		{Transport: "local", Algo: comm.Doubling}, {Transport: "tcp"}, {Transport: "shm"}, {Transport: "auto"},
	} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			t.Run(fmt.Sprintf("%s%s/%s", o.Transport, o.Algo, dt), func(t *testing.T) {
				o.Chunk = chunk
				var before []byte
				for range 2 {
					var groups []*comm.Group
					if o.Transport == "auto" {
						var err error
						if groups, err = comm.LocalOn([]string{"a", "b", "a", "b", "a"}, o); err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { commtest.Close(groups) })
					} else {
						groups = commtest.Groups(t, 5, o)
					}
					bufs := make([][]byte, len(groups))
					for r := range bufs {
						bufs[r] = random(uint64(r), dt, 10007)
					}
					zeros := make([][]float32, len(groups)) // of both signs: which one is least depends on the order
					for r := range zeros {
						zeros[r] = make([]float32, 64)
						for i := range zeros[r] {
							zeros[r][i] = float32(math.Copysign(0, float64(i>>r&1)-0.5))
						}
					}
					commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
						g.AllReduce(s, device.Of(zeros[g.Rank()]), dtype.F32, comm.Min)
						return g.AllReduce(s, device.Host(bufs[g.Rank()]), dt, comm.Sum).Wait(ctx)
					})
					for r := range zeros {
						if !slices.Equal(device.Of(zeros[r]).Bytes(), device.Of(zeros[0]).Bytes()) {
							t.Fatalf("ranks 0 and %d hold zeros of different signs", r)
						}
					}
					for r := range bufs {
						if !slices.Equal(bufs[r], bufs[0]) {
							t.Fatalf("ranks 0 and %d hold different bits", r)
						}
					}
					if before != nil && !slices.Equal(before, bufs[0]) {
						t.Fatal("the second run gave other bits")
					}
					before = bufs[0]
				}
			})
		}
	}
}

func random(seed uint64, dt dtype.DType, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	wide, narrow := make([]float32, n), make([]uint16, n)
	for i := range wide {
		wide[i] = float32(r.NormFloat64())
		narrow[i] = dtype.BF16From(wide[i])
	}
	if dt == dtype.BF16 {
		return device.Of(narrow).Bytes()
	}
	return device.Of(wide).Bytes()
}

// Where the documentation says that 16-bit floats are summed in float32 and
// rounded once, the result is the sum's nearest neighbour.
func TestHalvesAreRoundedOnce(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, o := range []comm.Options{
		{Algo: comm.OneShot}, {Algo: comm.Direct}, {Algo: comm.Doubling}, {Transport: "tcp"}, {Transport: "shm"},
	} {
		groups := commtest.Groups(t, 7, o)
		bufs := make([][]byte, len(groups))
		sums := make([]float64, 2000)
		for r := range bufs {
			bufs[r] = random(uint64(r), dtype.BF16, len(sums))
			for i, h := range device.View[uint16](device.Host(bufs[r])) {
				sums[i] += float64(dtype.BF16To(h))
			}
		}
		commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
			return g.AllReduce(s, device.Host(bufs[g.Rank()]), dtype.BF16, comm.Sum).Wait(ctx)
		})
		off := 0
		for i, h := range device.View[uint16](device.Host(bufs[0])) {
			got, want := float64(dtype.BF16To(h)), float64(dtype.BF16To(dtype.BF16From(float32(sums[i]))))
			if got != want {
				off++ // a sum in float32 may fall on the other side of a rounding boundary
			}
			if ulp := math.Max(math.Abs(want)/128, 1e-3); !(math.Abs(got-want) <= ulp) {
				t.Errorf("%s%s: element %d is %v, want %v", o.Transport, o.Algo, i, got, want)
			}
		}
		if off > len(sums)/200 {
			t.Errorf("%s%s: %d of %d sums are not rounded once", o.Transport, o.Algo, off, len(sums))
		}
	}
}

func TestAlloc(t *testing.T) {
	everywhere(t, 3, comm.Options{}, func(t *testing.T, groups []*comm.Group) {
		commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
			x := make([]float32, 100)
			g.AllReduce(s, device.Of(x), dtype.F32, comm.Sum)
			for _, n := range []int{0, 4, 1 << 20} {
				buf, err := g.Alloc(n)
				if err != nil || buf.Len() != n {
					return fmt.Errorf("Alloc(%d) = %d bytes, %v", n, buf.Len(), err)
				}
				v := device.View[float32](buf)
				for i := range v {
					if v[i] != 0 {
						return fmt.Errorf("element %d is %v", i, v[i])
					}
					v[i] = float32(g.Rank())
				}
				if err := g.AllReduce(s, buf, dtype.F32, comm.Sum).Wait(ctx); err != nil {
					return err
				}
				for i := range v {
					if v[i] != 3 {
						return fmt.Errorf("element %d is %v, want 3", i, v[i])
					}
				}
			}
			return nil
		})
	})
}

// What a call reports was counted: for a direct AllReduce, 2(n-1)/n of the array
// each way.
func TestWorkAndStatsCount(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, tr := range []string{"local", "tcp"} {
		groups := commtest.Groups(t, 4, comm.Options{Transport: tr, Algo: comm.Direct})
		commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
			w := g.AllReduce(s, device.Of(make([]float32, 4000)), dtype.F32, comm.Sum)
			if err := w.Wait(ctx); err != nil {
				return err
			}
			r := w.Result()
			if r.Sent != 24000 || r.Received != 24000 || r.Algorithm != comm.Direct || !r.End.After(r.Start) {
				return fmt.Errorf("%s: %+v", w, r)
			}
			st := g.Stats()
			if st.Calls != 1 || st.Failed != 0 || len(st.Wires) != 1 || st.Wires[0] != (comm.WireStats{Transport: tr, Sent: 24000, Received: 24000}) {
				return fmt.Errorf("%+v", st)
			}
			recent := g.Recent()
			if len(recent) != 1 || recent[0].State != comm.Ended || recent[0].Sent != 24000 || recent[0].String() != "AllReduce(sum, f32, 4000) #1 ended" {
				return fmt.Errorf("%+v", recent)
			}
			for range 100 {
				g.Barrier(s)
			}
			if err := s.Synchronize(ctx); err != nil {
				return err
			}
			if recent = g.Recent(); len(recent) != 64 || recent[63].Seq != 101 || recent[0].Kind != transport.Barrier {
				return fmt.Errorf("%d records, the last %v", len(recent), recent[len(recent)-1])
			}
			return nil
		})
	}
}

// A call allocates nothing: not in comm, not in the transports, not on any rank.
func TestAllReduceDoesNotAllocate(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, tr := range []string{"local", "tcp", "shm"} {
		for _, count := range []int{16, 1 << 16} {
			const n = 3
			groups := commtest.Groups(t, n, comm.Options{Transport: tr})
			streams, bufs := make([]*device.CPUStream, n), make([]device.Buffer, n)
			for r := range n {
				streams[r] = device.NewCPUStream("rank", nil)
				bufs[r] = device.Of(make([]float32, count))
			}
			done := make(chan struct{}, n)
			tell := func() error { done <- struct{}{}; return nil }
			step := func() {
				for r, g := range groups {
					g.AllReduce(streams[r], bufs[r], dtype.F32, comm.Sum)
					streams[r].Do("tell", tell)
				}
				for range n {
					<-done
				}
			}
			for range 100 {
				step()
			}
			allocs := testing.AllocsPerRun(20, step)
			for range 100 { // what else runs in this process is counted too, but not each time
				if allocs == 0 {
					break
				}
				allocs = min(allocs, testing.AllocsPerRun(20, step))
			}
			if allocs != 0 {
				t.Errorf("%s, %d elements: %v allocations per call of %d ranks", tr, count, allocs, n)
			}
			for _, s := range streams {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// Collections in the midst of calls do no harm: buffers may be moved by nobody and
// are freed by nobody while a call uses them.
func TestUnderGarbageCollection(t *testing.T) {
	everywhere(t, 3, comm.Options{Chunk: chunk}, func(t *testing.T, groups []*comm.Group) {
		commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
			var works []*comm.Work
			var bufs [][]int32
			for i := range 60 {
				x := make([]int32, 5000+i) // reachable only through the call, for some
				for j := range x {
					x[j] = int32(i + g.Rank())
				}
				works = append(works, g.AllReduce(s, device.Of(x), dtype.I32, comm.Sum))
				if i%3 == 0 {
					bufs = append(bufs, x)
				}
				if i%20 == g.Rank() {
					runtime.GC()
				}
			}
			for _, w := range works {
				if err := w.Wait(ctx); err != nil {
					return err
				}
			}
			for k, x := range bufs {
				for j := range x {
					if want := int32(3*3*k + 3); x[j] != want {
						return fmt.Errorf("call %d: element %d is %d, want %d", 3*k, j, x[j], want)
					}
				}
			}
			return nil
		})
	})
}

// Wait gives up with its context; the call goes on.
func TestWaitIsBoundedByItsContext(t *testing.T) {
	commtest.CheckLeaks(t)
	groups := commtest.Groups(t, 2)
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		go_ := make(chan struct{})
		s.Do("held", func() error { <-go_; return nil })
		w := g.Barrier(s)
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := w.Wait(over); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("got %v", err)
		}
		if w.Err() != nil || !w.Result().End.IsZero() {
			return fmt.Errorf("a held call has ended: %+v", w.Result())
		}
		close(go_)
		return w.Wait(ctx)
	})
}
