package comm_test

import (
	"runtime"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// onHeld makes calls on a stream that stands still until all are enqueued, and waits for
// them. It returns how often the driver was asked for an event, and how often for one to be
// recorded; asked from the end of the standstill on.
func onHeld(t *testing.T, m *machine, calls int, call func() *comm.Work) (asked, recorded int) {
	t.Helper()
	const all = 0
	recorded = m.driver.Calls("cuEventRecord")
	m.driver.Hold(all)
	var last *comm.Work
	for range calls {
		last = call()
	}
	recorded = m.driver.Calls("cuEventRecord") - recorded
	for asked = m.driver.Calls("cuEventQuery"); m.driver.Calls("cuEventQuery") < asked+10; { // who waits is between two looks
		runtime.Gosched()
	}
	asked = m.driver.Calls("cuEventQuery")
	m.driver.Release(all)
	if err := last.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m.driver.Calls("cuEventQuery") - asked, recorded
}

// Calls one behind the other share the event between them. One that comes when the GPU has
// been seen idle begins at an event of its own, and so after it was made. Of many calls that
// have ended half are not asked for.
func TestCallsShareEvents(t *testing.T) {
	m := newMachine(t, 1)
	g := m.groups(t, comm.Options{Engine: "ring"})[0]
	s, err := m.devices[0].NewStream("s")
	if err != nil {
		t.Fatal(err)
	}
	x := f32(s, 100)
	call := func() *comm.Work { return g.AllReduce(s, x, dtype.F32, comm.Sum) }
	const calls, turns = 50, 20
	few := 0
	for range turns {
		asked, recorded := onHeld(t, m, calls, call)
		if recorded != calls+1 {
			t.Errorf("%d calls recorded %d events", calls, recorded)
		}
		if asked < calls*3/4 {
			few++
		}
	}
	// A look that falls between the end of the calls and the next question for many of them
	// asks for each.
	if few < turns/4 {
		t.Errorf("in %d of %d turns fewer questions than %d were asked for %d calls", few, turns, calls*3/4, calls)
	}
	if err := commtest.Close([]*comm.Group{g}); err != nil {
		t.Error(err)
	}
}
