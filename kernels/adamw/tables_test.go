package adamw

import (
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// fakeCUDA is the operations on a fake GPU, where launches do nothing.
func fakeCUDA(t *testing.T) (*cudatest.Driver, CUDA, *cuda.Stream) {
	driver := cudatest.Fake(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	env := nv.NewEnv(d)
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if live := driver.Live(); len(live) > 0 {
			t.Errorf("left over: %v", live)
		}
	})
	m, err := d.LoadModule("adamw", cudatest.Module(map[string][]int{"adamw": {int(unsafe.Sizeof(stepArgs{}))}}))
	if err != nil {
		t.Fatal(err)
	}
	c := CUDA{tables: newTables(env)}
	if c.step, err = m.Function("adamw"); err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	return driver, c, nv.Stream(s)
}

func fakeSlot(t *testing.T, s *cuda.Stream) Slot {
	f32 := func() tensor.Tensor {
		x, err := tensor.Alloc(s.Device(), dtype.F32, 100)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	return Slot{W: f32(), M: f32(), V: f32(), G: f32()}
}

// Gradients that move, as they do when buckets are built anew, leave no table of the
// old places behind, whichever slot comes first.
func TestTablesOfMovedGradientsAreFreed(t *testing.T) {
	driver, c, s := fakeCUDA(t)
	slots := []Slot{fakeSlot(t, s), fakeSlot(t, s)}
	moved := []tensor.Tensor{slots[0].G, fakeSlot(t, s).G, fakeSlot(t, s).G}
	h := hyper
	h.Step = 1
	c.AdamW(s, slots, h)
	before, bytes := driver.Live(), c.tables.env.Device.Held()
	for i := range 20 {
		slots[i%2].G = moved[i%len(moved)]
		c.AdamW(s, slots, h)
	}
	kerntest.Wait(t, s)
	after := driver.Live()
	if len(c.tables.known) != 1 || c.tables.env.Device.Held() != bytes || after["memory"] != before["memory"] || after["pinned"] != before["pinned"] {
		t.Errorf("%d tables, %d bytes, %v; after the first step %d bytes, %v", len(c.tables.known), c.tables.env.Device.Held(), after, bytes, before)
	}
	if n := driver.Launches(); n != 21 {
		t.Errorf("%d launches of 21 steps", n)
	}
}

// Steps give their events back themselves: two are in turn enough, on one stream and
// on two, and nobody waits for one that was given back.
func TestStepsReuseTheirEvents(t *testing.T) {
	driver, c, s := fakeCUDA(t)
	slots := []Slot{fakeSlot(t, s)}
	h := hyper
	h.Step = 1
	other, err := s.Device().NewStream("other")
	if err != nil {
		t.Fatal(err)
	}
	before := driver.Calls("cuEventCreate")
	for i := range 100 {
		on := s
		if i%10 == 9 {
			on = nv.Stream(other)
		}
		c.AdamW(on, slots, h)
	}
	if n := driver.Calls("cuEventCreate") - before; n > 2 {
		t.Errorf("100 steps made %d events, want 2", n)
	}
	kerntest.Wait(t, s)
	kerntest.Wait(t, other)
	if waits := driver.Calls("cuStreamWaitEvent"); waits == 0 {
		t.Error("no step on the other stream waited")
	}
}
