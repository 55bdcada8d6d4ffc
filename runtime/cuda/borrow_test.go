package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// A second handle on a context works on what the first has made, and its Close
// leaves all of that alive: the first one's Close, which open checks, releases it.
func TestBorrowing(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 3})
	lender, err := Open(2)
	if err != nil {
		t.Fatal(err)
	}
	lent := stream(t, lender, "lent")
	code, err := lender.LoadModule("lent", kernels)
	if err != nil {
		t.Fatal(err)
	}
	lentMemory := alloc(t, lender, 1024)
	before := f.Live()

	d, err := Borrow(lender.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.String() != "cuda:2" || d.Context() != lender.Context() || d.Name() != "Fake GPU" || d.SMs() != lender.SMs() || d.UUID() != lender.UUID() {
		t.Errorf("borrowed %s (%s, %s) of %#x", d, d.Name(), d.UUID(), d.Context())
	}
	s, err := d.BorrowStream("borrowed", lent.Handle())
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.BorrowMemory(lentMemory.Addr()+256, 512)
	if err != nil || b.Addr() != lentMemory.Addr()+256 || b.Len() != 512 || b.OnHost() {
		t.Fatalf("borrowed %+v, %v", b, err)
	}
	fn, err := d.BorrowModule("borrowed", code.Handle()).Function("add")
	if err != nil {
		t.Fatal(err)
	}
	words := []uint32{1, 2, 3, 4}
	lent.Copy(b.Slice(0, 16), device.Of(words))
	back := make([]uint32, 4)
	s.Copy(device.Of(back), b.Slice(0, 16))
	Launch(s, fn, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &struct{ A, B, C, D, E uint64 }{})
	if err := s.Synchronize(deadline(t)); err != nil || back[3] != 4 || f.Launches() != 1 {
		t.Errorf("%v, %v, %d launches", err, back, f.Launches())
	}
	if d.Held() != 0 {
		t.Errorf("the borrower holds %d bytes", d.Held())
	}
	if err := d.Free(b); err == nil {
		t.Error("borrowed memory was freed")
	}

	// One stream is closed here, the other by its device.
	other, err := d.BorrowStream("left open", lent.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close(), d.BorrowModule("unloaded", code.Handle()).Unload(), d.Close()); err != nil {
		t.Error(err)
	}
	if other.Copy(b, b); !errors.Is(other.Err(), device.ErrClosed) {
		t.Errorf("a copy after Close: %v", other.Err())
	}
	for kind, n := range before {
		if got := f.Live()[kind]; got != n && kind != "events" {
			t.Errorf("%d %s live, %d before they were lent", got, kind, n)
		}
	}
	lent.Clear(lentMemory)
	if err := errors.Join(lent.Synchronize(deadline(t)), lent.Close(), code.Unload(), lender.Free(lentMemory), lender.Close()); err != nil {
		t.Error(err)
	}
	if live := f.Live(); len(live) > 0 {
		t.Errorf("left %v", live)
	}
}

// A borrowed event holds streams back until it is reached, brings its stream's error,
// and is never recorded anew or destroyed here.
func TestBorrowedEvents(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	lent := stream(t, d, "lent")
	first, err := d.BorrowStream("borrowed", lent.Handle())
	if err != nil {
		t.Fatal(err)
	}
	f.Hold(lent.Handle())
	mark := lent.Record().(*Event)
	e := first.BorrowEvent(mark.Handle())
	if done, err := e.Reached(); done || err != nil {
		t.Errorf("reached: %t, %v", done, err)
	}
	waits := f.Calls("cuStreamWaitEvent")
	waiter := stream(t, d, "waiter")
	waiter.Wait(e)
	if n := f.Calls("cuStreamWaitEvent") - waits; n != 1 || waiter.Err() != nil {
		t.Errorf("%d waits, %v", n, waiter.Err())
	}
	f.Release(lent.Handle())
	if err := e.Sync(deadline(t)); err != nil {
		t.Error(err)
	}
	if took, err := e.Since(mark); err != nil || took != 0 {
		t.Errorf("from an event to itself: %s, %v", took, err)
	}
	e.Release()
	if again := lent.Record().(*Event); again.Handle() == mark.Handle() {
		t.Error("a borrowed event went into the pool")
	}
	mark.Release()

	boom := errors.New("a peer is lost")
	late := stream(t, d, "late")
	f.Hold(lent.Handle())
	late.Wait(first.BorrowEvent(lent.Record().(*Event).Handle()))
	first.Fail(boom)
	f.Release(lent.Handle())
	if !errors.Is(late.Err(), boom) || lent.Err() != nil {
		t.Errorf("the waiting stream says %v, the lent one %v", late.Err(), lent.Err())
	}
	other := stream(t, d, "other")
	if other.Wait(first.BorrowEvent(lent.Record().(*Event).Handle())); !errors.Is(other.Err(), boom) {
		t.Errorf("a wait for an event of a failed stream: %v", other.Err())
	}
}

func TestWhatCannotBeBorrowed(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	d := open(t, f)
	second, err := Open(1)
	if err != nil {
		t.Fatal(err)
	}
	foreign := stream(t, second, "foreign")
	b := alloc(t, d, 1000)
	for _, c := range []struct {
		what string
		err  error
		want []string
	}{
		{"no context", errorOf(Borrow(0)), []string{"a context of zero"}},
		{"not a context", errorOf(Borrow(foreign.Handle())), []string{"context 0x", "cuCtxSetCurrent", "INVALID_CONTEXT"}},
		{"the default stream", errorOf(d.BorrowStream("s", 0)), []string{"cuda:0", "stream s is the default stream", "NON_BLOCKING"}},
		{"a stream of elsewhere", errorOf(d.BorrowStream("s", foreign.Handle())), []string{"cuda:0", "stream s is of context", "borrow that context"}},
		{"not a stream", errorOf(d.BorrowStream("s", d.Context())), []string{"stream s: cuStreamGetCtx", "INVALID_HANDLE"}},
		{"no memory", errorOf(d.BorrowMemory(64, 4)), []string{"cuMemGetAddressRange(0x40)", "4 bytes to borrow"}},
		{"too much memory", errorOf(d.BorrowMemory(b.Addr()+600, 401)), []string{"401 bytes", "ends after 400"}},
		{"less than nothing", errorOf(d.BorrowMemory(b.Addr(), -1)), []string{"-1 bytes"}},
	} {
		if c.err == nil {
			t.Errorf("%s was borrowed", c.what)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(c.err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.what, c.err, want)
			}
		}
	}
	if b, err := d.BorrowMemory(0, 0); err != nil || b.Len() != 0 {
		t.Errorf("nothing: %v, %v", b, err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// errorOf is the error of two results.
func errorOf[T any](_ T, err error) error { return err }
