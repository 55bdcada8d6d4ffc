package cuda

import (
	"context"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// kernels is a module of the fake.
var kernels = cudatest.Module(map[string][]int{"add": {40}, "mapped": {128, 16}, "none": {}, "many": make([]int, maxPieces+1)})

// open opens GPU 0 of the fake, and checks in the end that Close leaves nothing,
// and has no error but that of a stream which the test let fail.
func open(t testing.TB, f *cudatest.Driver) *Device {
	t.Helper()
	d, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		failed := d.failed()
		if err := d.Close(); err != nil && !failed {
			t.Errorf("Close: %v", err)
		}
		if live := f.Live(); len(live) > 0 {
			t.Errorf("Close left %v", live)
		}
	})
	return d
}

func (d *Device) failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.streams {
		if s.Err() != nil {
			return true
		}
	}
	return false
}

func stream(t testing.TB, d *Device, name string) *Stream {
	t.Helper()
	s, err := d.NewStream(name)
	if err != nil {
		t.Fatal(err)
	}
	return s.(*Stream)
}

func function(t testing.TB, d *Device, name string) *Function {
	t.Helper()
	m, err := d.LoadModule("test", kernels)
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func alloc(t testing.TB, d *Device, n int) device.Buffer {
	t.Helper()
	b, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
