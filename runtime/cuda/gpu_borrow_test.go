package cuda_test

import (
	"errors"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Two handles on one context, and the second on the first one's stream, code and memory:
// what it waits for and launches comes after what the first has enqueued.
func TestGPUBorrow(t *testing.T) {
	lender := gpus(t, 1)[0]
	d := must(cuda.Borrow(lender.Context()))(t)
	if d.String() != lender.String() || d.UUID() != lender.UUID() {
		t.Errorf("borrowed %s (%s), lent %s (%s)", d, d.UUID(), lender, lender.UUID())
	}
	code := must(nvrtc.Module(lender, "test.cu", text))(t)
	spin := must(d.BorrowModule("lent", code.Handle()).Function("spin"))(t)
	lent, word := start(t, lender, "lent"), must(lender.Alloc(4))(t)
	s := must(d.BorrowStream("borrowed", lent.Handle()))(t)
	b := must(d.BorrowMemory(word.Addr(), 4))(t)
	if _, err := d.BorrowMemory(word.Addr(), 1<<40); err == nil {
		t.Error("more was borrowed than was allocated")
	}

	waiter, seen := start(t, d, "waiter"), must(d.AllocHost(4))(t)
	cuda.Launch(s, spin, one, &spinArgs{50e6, b.Addr(), 4711})
	mark := lent.Record().(*cuda.Event)
	e := s.BorrowEvent(mark.Handle())
	if done, err := e.Reached(); done || err != nil {
		t.Errorf("a kernel of 50 ms is done at once: %t, %v", done, err)
	}
	waiter.Wait(e)
	waiter.Copy(seen, b)
	check(t, waiter)
	if got := device.View[uint32](seen)[0]; got != 4711 {
		t.Errorf("the other stream copied %d: it did not wait", got)
	}

	if err := errors.Join(d.Free(seen), s.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	lent.Clear(word) // all of it is still there
	check(t, lent)
	if err := errors.Join(code.Unload(), lent.Close(), lender.Free(word)); err != nil {
		t.Error(err)
	}
}
