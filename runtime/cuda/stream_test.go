package cuda

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

func TestCopiesAndFills(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	b := alloc(t, d, 64)
	s.Copy(b, device.Of([]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}))
	s.Fill32(b.Slice(4, 12), 0xdeadbeef)
	s.Clear(b.Slice(12, 17))
	s.WriteValue32(b.Addr()+60, 77)
	s.WaitValue32(b.Addr()+60, 77)
	s.Copy(b.Slice(52, 56), b.Slice(0, 4))
	s.Clear(device.Buffer{})
	s.Fill32(device.Buffer{}, 1)
	s.Copy(device.Buffer{}, device.Buffer{})
	got := make([]uint32, 16)
	s.Copy(device.Of(got), b)
	if err := s.Synchronize(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if want := []uint32{1, 0xdeadbeef, 0xdeadbeef, 0, 0, 6, 7, 8, 9, 10, 11, 12, 13, 1, 15, 77}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestMisuseFailsTheStream(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	d := open(t, f)
	d1, err := Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer d1.Close()
	b := alloc(t, d, 64)
	add, many := function(t, d, "add"), function(t, d, "many")
	released := stream(t, d, "released").Record().(*Event)
	released.Release()
	one := Dim{X: 1}
	type five struct{ A, B, C, D, E uint64 }
	for want, use := range map[string]func(s *Stream){
		"copy of 8 bytes into a buffer of 64":                func(s *Stream) { s.Copy(b, b.Slice(0, 8)) },
		"fill of 6 bytes":                                    func(s *Stream) { s.Fill32(b.Slice(0, 6), 1) },
		"event of another kind of device":                    func(s *Stream) { s.Wait(device.NewCPUStream("cpu", nil).Record()) },
		"waits for an event of stream released":              func(s *Stream) { s.Wait(released) },
		"add was loaded on cuda:0":                           func(*Stream) {},
		"add: a grid of 0x1x1 blocks of 1x1x1 threads":       func(s *Stream) { Launch(s, add, Grid{Threads: one}, &five{}) },
		"add: a grid of 1x1x1 blocks of -1x1x1 threads":      func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: Dim{X: -1}}, &five{}) },
		"with -8 bytes of shared memory":                     func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: one, Shared: -8}, &five{}) },
		"2048x1x1 threads, 0 bytes of shared memory: cuLaun": func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: Dim{X: 2048}}, &five{}) },
		"takes 40 bytes of parameters, and":                  func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: one}, &struct{ A, B uint64 }{}) },
		"it holds a *int":                                    func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: one}, &struct{ A *int }{}) },
		"it holds a []uint64": func(s *Stream) {
			Launch(s, add, Grid{Blocks: one, Threads: one}, &struct{ A [2]struct{ X []uint64 } }{})
		},
		"many takes 33 parameters":    func(s *Stream) { Launch(s, many, Grid{Blocks: one, Threads: one}, &struct{}{}) },
		"a kernel takes at most 4096": func(s *Stream) { Launch(s, add, Grid{Blocks: one, Threads: one}, &[4100]byte{}) },
	} {
		s := stream(t, d, "s")
		if strings.HasPrefix(want, "add was loaded") {
			s = stream(t, d1, "s")
			Launch(s, add, Grid{Blocks: one, Threads: one}, &five{})
		}
		use(s)
		err := s.Err()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), s.d.String()+": stream s: ") {
			t.Errorf("got %v, want %s", err, want)
		}
		if again := s.Synchronize(deadline(t)); again != err {
			t.Errorf("Synchronize says %v", again)
		}
	}
	if f.Launches() != 0 {
		t.Error("something was launched")
	}
}

func TestTheFirstErrorSticks(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "compute")
	b := alloc(t, d, 64)
	f.Fail("cuMemcpyAsync", 700)
	s.Copy(b, b)
	f.Fail("cuMemcpyAsync", 0)
	s.Fail(errors.New("later"))
	s.Fail(nil)
	before := []int{f.Calls("cuMemcpyAsync"), f.Calls("cuEventRecord"), f.Calls("cuMemsetD8Async")}
	s.Copy(b, b)
	s.Clear(b)
	e := s.Record()
	if after := []int{f.Calls("cuMemcpyAsync"), f.Calls("cuEventRecord"), f.Calls("cuMemsetD8Async")}; !slices.Equal(before, after) {
		t.Errorf("work behind a failure: %v calls, then %v", before, after)
	}
	for what, err := range map[string]error{"Err": s.Err(), "Sync": e.Sync(deadline(t)), "Synchronize": s.Synchronize(deadline(t)), "Close": s.Close()} {
		if err == nil || !strings.HasPrefix(err.Error(), "cuda:0: stream compute: cuMemcpyAsync(64 bytes from 0x") || !strings.Contains(err.Error(), "illegal memory access") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAnErrorSpreadsToThoseWhoWait(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	gone := errors.New("rank 3 is gone")
	comm, compute, copies, apart, seen := stream(t, d, "comm"), stream(t, d, "compute"), stream(t, d, "copies"), stream(t, d, "apart"), stream(t, d, "seen")

	early := comm.Record()
	seen.Wait(early)
	if err := early.Sync(deadline(t)); err != nil { // so what seen waited for was sound
		t.Fatal(err)
	}

	compute.Wait(comm.Record())
	comm.Wait(compute.Record()) // a circle of streams, as in each training step
	copies.Wait(compute.Record())
	comm.Wait(apart.Record())
	comm.Fail(gone)

	for _, s := range []*Stream{comm, compute, copies} {
		if err := s.Synchronize(deadline(t)); !errors.Is(err, gone) {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	for _, s := range []*Stream{apart, seen} {
		if err := s.Synchronize(deadline(t)); err != nil {
			t.Errorf("%s waits for nothing that failed, but: %v", s.name, err)
		}
	}
	apart.Wait(comm.Record())
	if !errors.Is(apart.Err(), gone) {
		t.Errorf("a wait after the failure: %v", apart.Err())
	}
}

// An event that was recorded before its stream failed, and is waited for after.
func TestAWaitThatComesAfterTheFailure(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	a, b := stream(t, d, "a"), stream(t, d, "b")
	e := a.Record()
	a.Fail(errors.New("broken"))
	b.Wait(e)
	if b.Err() == nil {
		t.Error("b goes on")
	}
	if err := e.Sync(deadline(t)); err == nil {
		t.Error("the event of a failed stream is reached")
	}
}

func TestAClosedStream(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s, w := stream(t, d, "s"), stream(t, d, "w")
	e := s.Record()
	w.Wait(e)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := e.Sync(deadline(t)); err != nil {
		t.Errorf("an event of a closed stream: %v", err)
	}
	s.Clear(alloc(t, d, 8))
	if err := s.Synchronize(deadline(t)); !errors.Is(err, device.ErrClosed) {
		t.Errorf("work on a closed stream: %v", err)
	}
	if err := w.Synchronize(deadline(t)); err != nil {
		t.Errorf("who waited before: %v", err)
	}
	if n := len(w.links.awaited) + len(w.links.waiters) + len(s.links.awaited) + len(s.links.waiters); n != 1 {
		t.Errorf("%d links are left", n)
	}
	if err := w.Close(); err != nil || len(w.links.awaited) != 0 {
		t.Errorf("%v, %d links are left", err, len(w.links.awaited))
	}
}

// Query asks the driver, but not of a stream that is gone, and waits for nobody.
func TestQuery(t *testing.T) {
	f := cudatest.Fake(t)
	s := stream(t, open(t, f), "s")
	says := func(when string, want bool, calls int) {
		t.Helper()
		before := f.Calls("cuStreamQuery")
		if done, err := s.Query(); done != want || err != nil || f.Calls("cuStreamQuery") != before+calls {
			t.Errorf("%s: %v, %v with %d calls", when, done, err, f.Calls("cuStreamQuery")-before)
		}
	}
	says("nothing is enqueued", true, 1)
	s.mu.Lock()
	says("somebody enqueues", false, 0)
	s.mu.Unlock()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	says("a closed stream", false, 0)
}

// Close waits for work, and a stream that is stuck does not hold it up for ever.
func TestCloseWaitsForWork(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	f.Hold(s.Handle())
	done := make(chan error)
	polled := f.Calls("cuEventQuery")
	go func() { done <- s.Close() }()
	for f.Calls("cuEventQuery") < polled+3 {
		select {
		case err := <-done:
			t.Fatalf("Close did not wait: %v", err)
		default:
		}
	}
	f.Release(s.Handle())
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPriority(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	high, err := d.NewPriorityStream("high", true)
	if err != nil {
		t.Fatal(err)
	}
	low, err := d.NewPriorityStream("low", false)
	if err != nil {
		t.Fatal(err)
	}
	if h, l, n := f.Priority(high.Handle()), f.Priority(low.Handle()), f.Priority(stream(t, d, "normal").Handle()); h != -5 || l != 0 || n != 0 {
		t.Errorf("priorities %d, %d, %d", h, l, n)
	}
	if high.Name() != "high" || high.Device() != device.Device(d) {
		t.Errorf("stream %s of %v", high.Name(), high.Device())
	}
}

func TestSyncHonoursItsContext(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "compute")
	f.Hold(s.Handle())
	defer f.Release(s.Handle())
	e := s.Record()

	why := errors.New("job deadline")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := e.Sync(ctx); !errors.Is(err, why) || !strings.Contains(err.Error(), "cuda:0: waiting for stream compute") {
		t.Errorf("already ended: %v", err)
	}

	// One that ends while the poll sleeps.
	ctx, stop := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
	defer stop()
	if err := s.Synchronize(ctx); !errors.Is(err, why) {
		t.Errorf("ended: %v", err)
	}
	if s.Err() != nil {
		t.Errorf("the stream failed: %v", s.Err())
	}

	// A failure ends the wait too.
	done := make(chan error)
	go func() { done <- e.Sync(deadline(t)) }()
	s.Fail(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("failed: %v", err)
	}
}
