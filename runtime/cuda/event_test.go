package cuda

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

func TestEventsAreReused(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	before := f.Calls("cuEventCreate")
	for range 100 {
		if err := s.Synchronize(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Calls("cuEventCreate") - before; n != 1 {
		t.Errorf("100 waits made %d events", n)
	}
	a, b := s.Record().(*Event), s.Record().(*Event)
	if a.handle == b.handle {
		t.Error("two events that are held are one")
	}
	a.Release()
	a.Release()
	if c, e := s.Record().(*Event), s.Record().(*Event); c.handle != a.handle || e.handle == a.handle {
		t.Error("a release, done twice, gave back none or two")
	}
}

// What several use is released by the last of them.
func TestHeldEvents(t *testing.T) {
	d := open(t, cudatest.Fake(t))
	s := stream(t, d, "s")
	e := s.Record().(*Event)
	e.Hold()
	e.Release()
	if other := s.Record().(*Event); other.handle == e.handle {
		t.Error("an event that is held was given to another")
	}
	e.Release()
	if other := s.Record().(*Event); other.handle != e.handle {
		t.Error("an event was not released by the last who held it")
	}
}

// An event is the latest place of its stream until anything is enqueued there, and never
// where others may enqueue.
func TestLatest(t *testing.T) {
	d := open(t, cudatest.Fake(t))
	s, other := stream(t, d, "s"), stream(t, d, "other")
	word, err := d.Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.NewPool(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	pooled, err := p.Alloc(s, 4)
	if err != nil {
		t.Fatal(err)
	}
	for name, enqueue := range map[string]func(){
		"a free":     func() { p.Free(s, pooled) },
		"a copy":     func() { s.Copy(word, word) },
		"a clear":    func() { s.Clear(word) },
		"an event":   func() { s.Record() },
		"a wait":     func() { s.Wait(other.Record()) },
		"a counter":  func() { s.WriteValue32(word.Addr(), 1) },
		"its handle": func() { s.Handle() },
	} {
		e := s.Record().(*Event)
		if name != "its handle" && !s.Latest(e) || other.Latest(e) {
			t.Errorf("before %s: the event is the latest of its stream: %v, of another: %v", name, s.Latest(e), other.Latest(e))
		}
		enqueue()
		if s.Latest(e) {
			t.Errorf("behind %s an event is still the latest", name)
		}
		s.lent.Store(false)
	}
}

// What a later event of the stream tells of earlier ones, the driver is not asked again.
func TestReachedWith(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s, other := stream(t, d, "s"), stream(t, d, "other")
	early, elsewhere, late := s.Record().(*Event), other.Record().(*Event), s.Record().(*Event)
	asked := func(e *Event) int {
		before := f.Calls("cuEventQuery")
		if there, err := e.Reached(); !there || err != nil {
			t.Errorf("%v, %v", there, err)
		}
		return f.Calls("cuEventQuery") - before
	}
	early.ReachedWith(late) // of which nothing is known yet
	if early.reached.Load() {
		t.Error("an event was taken for reached with one that nobody has seen")
	}
	if n := asked(late); n != 1 {
		t.Errorf("%d questions", n)
	}
	early.ReachedWith(late)
	elsewhere.ReachedWith(late)
	after := s.Record().(*Event)
	after.ReachedWith(late)
	for what, c := range map[string]struct {
		e *Event
		n int
	}{"an earlier event": {early, 0}, "one of another stream": {elsewhere, 1}, "a later one": {after, 1}} {
		if n := asked(c.e); n != c.n {
			t.Errorf("%s: the driver was asked %d times, want %d", what, n, c.n)
		}
	}
}

// Events that nobody holds come back by the garbage collector.
func TestDroppedEventsComeBack(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	for range 50 {
		s.Record()
	}
	kept := s.Record().(*Event)
	s.Record().(*Event).Release() // comes back once, not twice
	free := func() int {
		d.events.mu.Lock()
		defer d.events.mu.Unlock()
		return len(d.events.free)
	}
	ctx := deadline(t)
	for free() < 51 && ctx.Err() == nil {
		runtime.GC()
	}
	for range 3 {
		runtime.GC()
	}
	if n := free(); n != 51 {
		t.Errorf("%d of 51 events came back", n)
	}
	for range 51 {
		if s.Record().(*Event).handle == kept.handle {
			t.Fatal("an event that is held was recorded anew")
		}
	}
	runtime.KeepAlive(kept)
}

// An event that a stream waits for is not recorded anew as long as its failure
// would matter to the waiting one.
func TestAwaitedEventsAreKept(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	a, b := stream(t, d, "a"), stream(t, d, "b")
	b.Wait(a.Record())
	for range 3 {
		runtime.GC()
	}
	a.links.mu.Lock()
	e := a.links.waiters[b]
	a.links.mu.Unlock()
	for range 20 {
		if a.Record().(*Event).handle == e.handle {
			t.Fatal("it was")
		}
	}
}

func TestSince(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	first := s.Record()
	f.Hold(s.Handle())
	last := s.Record()
	if _, err := last.Since(first); err == nil || !strings.Contains(err.Error(), "not reached") {
		t.Errorf("an event that is not reached has a time: %v", err)
	}
	f.Release(s.Handle())
	if took, err := last.Since(first); err != nil || took < 0 {
		t.Errorf("Since = %v, %v", took, err)
	}
	back, err := first.Since(last)
	if forth, _ := last.Since(first); err != nil || back != -forth {
		t.Errorf("back %v, forth %v, %v", back, forth, err)
	}
	if _, err := last.Since(device.NewCPUStream("cpu", nil).Record()); err == nil {
		t.Error("the CPU's events are compared")
	}
	first.(*Event).Release()
	if _, err := last.Since(first); err == nil {
		t.Error("a released event has a time")
	}
}

// A released event was reached, or not, and stays so.
func TestReleasedEvents(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	e := s.Record().(*Event)
	if err := e.Sync(deadline(t)); err != nil {
		t.Fatal(err)
	}
	unseen := s.Record().(*Event)
	e.Release()
	unseen.Release()
	if err := e.Sync(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := unseen.Sync(deadline(t)); err == nil || !strings.Contains(err.Error(), "released") {
		t.Errorf("got %v", err)
	}
}

func TestAnErrorWhilePollingFailsTheStream(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s, w := stream(t, d, "s"), stream(t, d, "w")
	e := s.Record()
	w.Wait(e)
	f.Fail("cuEventQuery", 700)
	err := e.Sync(deadline(t))
	f.Fail("cuEventQuery", 0)
	const want = "cuda:0: stream s: cuEventQuery: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if !errors.Is(w.Err(), err) {
		t.Errorf("the waiting stream: %v", w.Err())
	}
}
