package device

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestWorkRunsInOrderAndTheHostDoesNotWait(t *testing.T) {
	s := NewCPUStream("compute", nil)
	gate := make(chan struct{})
	var got []int
	s.Do("gate", func() error { <-gate; return nil })
	for i := range 100 {
		s.Do("append", func() error { got = append(got, i); return nil })
	}
	close(gate) // reached only because the 101 calls above did not block
	if err := s.Synchronize(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("ran in order %v", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnEventOrdersTwoStreams(t *testing.T) {
	compute, comm := NewCPUStream("compute", nil), NewCPUStream("comm", nil)
	defer compute.Close()
	defer comm.Close()
	var written atomic.Bool
	gate := make(chan struct{})
	compute.Do("write", func() error { <-gate; written.Store(true); return nil })
	comm.Wait(compute.Record())
	var seen bool
	comm.Do("read", func() error { seen = written.Load(); return nil })
	close(gate)
	if err := comm.Synchronize(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("the second stream ran before the event")
	}
}

func TestTheFirstErrorSticksAndSpreadsToWaiters(t *testing.T) {
	a, b := NewCPUStream("a", nil), NewCPUStream("b", nil)
	broken := errors.New("peer is gone")
	a.Do("AllReduce", func() error { return broken })
	a.Do("next", func() error { t.Error("work ran behind a failure"); return nil })
	b.Wait(a.Record())
	b.Do("optimizer", func() error { t.Error("work ran on what a failure left"); return nil })
	if err := b.Synchronize(deadline(t)); !errors.Is(err, broken) {
		t.Errorf("waiter got %v", err)
	}
	if err := a.Close(); !errors.Is(err, broken) {
		t.Errorf("Close returned %v", err)
	}
	b.Close()
	b.Do("late", func() error { t.Error("work ran on a closed stream"); return nil })
	if err := b.Synchronize(deadline(t)); err == nil {
		t.Error("a closed stream accepted work")
	}
}

func TestSyncEndsWithItsContext(t *testing.T) {
	s := NewCPUStream("s", nil)
	gate := make(chan struct{})
	s.Do("stuck", func() error { <-gate; return nil })
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("job deadline")
	cancel(why)
	if err := s.Synchronize(ctx); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	close(gate)
	s.Close()
}

func TestSinceNeedsReachedEvents(t *testing.T) {
	s := NewCPUStream("s", nil)
	first := s.Record()
	gate := make(chan struct{})
	s.Do("work", func() error { <-gate; return nil })
	last := s.Record()
	if err := first.Sync(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Since(first); err == nil {
		t.Error("an event that is not reached has a time")
	}
	close(gate)
	s.Close()
	if d, err := last.Since(first); err != nil || d < 0 {
		t.Errorf("Since = %v, %v", d, err)
	}
}

func TestBuffersShareMemory(t *testing.T) {
	b, err := NewCPU().Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	if b.Addr()%64 != 0 || b.Len() != 64 || !b.OnHost() {
		t.Errorf("address %#x, %d bytes", b.Addr(), b.Len())
	}
	View[float32](b)[3] = 1.5
	if got := View[float32](b.Slice(12, 16))[0]; got != 1.5 {
		t.Errorf("slice sees %v", got)
	}
	if d := At(4096, 64).Slice(16, 32); d.Addr() != 4112 || d.Len() != 16 || d.OnHost() {
		t.Errorf("device slice is %#x, %d bytes", d.Addr(), d.Len())
	}
	if got := Of([]int32{7, 8}).Len(); got != 8 {
		t.Errorf("Of has %d bytes", got)
	}
	for name, f := range map[string]func(){
		"out of range":  func() { b.Slice(60, 65) },
		"misaligned":    func() { View[float64](b.Slice(4, 12)) },
		"device memory": func() { At(4096, 8).Bytes() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// On a single thread, too, a stream that goes on computing lets the one go first
// that waits for its event.
func TestAWaitingStreamStartsAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds = 100
	first := 0
	for range rounds {
		compute, comm := NewCPUStream("compute", nil), NewCPUStream("comm", nil)
		var started atomic.Bool
		there := make(chan struct{})
		compute.Do("piece", func() error { <-there; return nil })
		e := compute.Record()
		compute.Do("next piece", func() error {
			if started.Load() {
				first++
			}
			return nil
		})
		comm.Do("about to wait", func() error { close(there); return nil })
		comm.Wait(e)
		comm.Do("start", func() error { started.Store(true); return nil })
		if err := compute.Close(); err != nil {
			t.Error(err)
		}
		if err := comm.Close(); err != nil {
			t.Error(err)
		}
	}
	// The scheduler may decide otherwise now and then.
	if first < rounds/2 {
		t.Errorf("the waiting stream went first in %d of %d rounds", first, rounds)
	}
}

// BenchmarkHandOver is a stream that computes for 0.3 ms at a time, and one that
// waits for each piece and works for 0.1 ms itself. It reports how long after a
// piece's end the other starts, and how much longer a piece takes than without it.
func BenchmarkHandOver(b *testing.B) {
	compute, comm := NewCPUStream("compute", nil), NewCPUStream("comm", nil)
	defer comm.Close()
	defer compute.Close()
	work := func(d time.Duration) func() error {
		return func() error {
			for start := time.Now(); time.Since(start) < d; {
			}
			return nil
		}
	}
	const pieces = 64
	var late, longer []time.Duration
	for b.Loop() {
		var ends, starts []Event
		for range pieces {
			compute.Do("piece", work(300*time.Microsecond))
			ends = append(ends, compute.Record())
			comm.Wait(ends[len(ends)-1])
			starts = append(starts, comm.Record())
			comm.Do("other", work(100*time.Microsecond))
		}
		if err := comm.Synchronize(b.Context()); err != nil {
			b.Fatal(err)
		}
		for i := range pieces {
			d, err := starts[i].Since(ends[i])
			if err != nil {
				b.Fatal(err)
			}
			late = append(late, d)
			if i > 0 {
				d, _ := ends[i].Since(ends[i-1])
				longer = append(longer, d-300*time.Microsecond)
			}
		}
	}
	slices.Sort(late)
	slices.Sort(longer)
	b.ReportMetric(float64(late[len(late)/2].Nanoseconds())/1e3, "late-µs")
	b.ReportMetric(float64(longer[len(longer)/2].Nanoseconds())/1e3, "longer-µs")
}

func TestCopyIsWorkOfTheStream(t *testing.T) {
	s := NewCPUStream("s", nil)
	gate := make(chan struct{})
	src, dst := []int32{1, 2, 3}, make([]int32, 3)
	s.Do("gate", func() error { <-gate; return nil })
	s.Copy(Of(dst), Of(src))
	src[1] = 7 // the copy has not run yet
	close(gate)
	if err := s.Synchronize(deadline(t)); err != nil || !slices.Equal(dst, []int32{1, 7, 3}) {
		t.Errorf("copied %v, %v", dst, err)
	}
	s.Copy(Of(dst), Of(src[:2]))
	if err := s.Close(); err == nil {
		t.Error("a copy between sizes was accepted")
	}
}

// counted is an event that knows how often it was released.
type counted struct {
	Event
	released int
}

func (c *counted) Release() { c.released++ }

func TestRelease(t *testing.T) {
	s := NewCPUStream("test", nil)
	defer s.Close()
	c := &counted{}
	Release(nil, s.Record(), c)
	if c.released != 1 {
		t.Errorf("released %d times", c.released)
	}
}
