package device

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
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
