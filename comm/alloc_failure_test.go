package comm

import (
	"errors"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A backward pass goes on writing gradients into the arena while the group fails
// under it: the memory must stay until Close.
func TestMemoryFromAllocOutlivesAFailure(t *testing.T) {
	groups, err := Local(2, Options{Transport: "shm"})
	if err != nil {
		t.Fatal(err)
	}
	buffers := make([]device.Buffer, 2)
	done := make(chan error, 2)
	for i, g := range groups {
		go func() {
			var err error
			buffers[i], err = g.Alloc(1 << 20)
			done <- err
		}()
	}
	for range groups {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	why := errors.New("a reason")
	groups[1].Abort(why)
	s := device.NewCPUStream("comm", nil)
	w := groups[0].AllReduce(s, buffers[0], dtype.F32, Sum)
	if err := w.Wait(t.Context()); err == nil {
		t.Fatal("a failed group reduced")
	}
	for _, b := range buffers {
		clear(b.Bytes()) // a fault, were it unmapped
	}
	s.Close()
	for _, g := range groups {
		g.Close()
	}
}
