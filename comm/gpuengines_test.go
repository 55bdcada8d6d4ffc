package comm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// What holds for every engine that moves the memory of GPUs, three ranks each.

// inARow lets ranks make calls on two streams in turns, rank 0 all of its before another
// makes the first, and looks at the sums. each looks at the calls, which have ended.
func inARow(t *testing.T, m *machine, groups []*comm.Group, each func(w *comm.Work) error) {
	t.Helper()
	const rounds = 12
	first := make(chan struct{})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		other, err := s.Device().NewStream("other")
		if err != nil {
			return err
		}
		const n = 1000
		x, err := s.Device().Alloc(4 * n)
		if err != nil {
			return err
		}
		host := make([]int32, n)
		for i := range host {
			host[i] = int32(i%7 + g.Rank())
		}
		s.Copy(x, device.Of(host))
		if g.Rank() > 0 {
			<-first
		}
		var works []*comm.Work
		for i := range rounds {
			on := s
			if i%3 == 1 {
				on = other
			}
			works = append(works, g.AllReduce(on, x, dtype.I32, comm.Sum), g.Broadcast(on, x, dtype.I32, i%3))
		}
		if g.Rank() == 0 {
			if !works[0].Result().End.IsZero() {
				return errors.New("a call has ended that no other rank has made")
			}
			close(first)
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := each(w); err != nil {
				return err
			}
		}
		s.Copy(device.Of(host), x)
		want := int32(1)
		for range rounds - 1 {
			want *= 3
		}
		for i, v := range host {
			if v != want*int32(3*(i%7)+3) {
				return fmt.Errorf("element %d is %d, want %d", i, v, want*int32(3*(i%7)+3))
			}
		}
		return other.Close()
	})
}

// oddCalls are calls in which one rank, the odd one, makes another than the others.
var oddCalls = map[string]func(g *comm.Group, s device.Stream, odd int) *comm.Work{
	"count": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
		return g.AllReduce(s, f32(s, 100+100*odd), dtype.F32, comm.Sum)
	},
	"kind": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
		if odd == 1 {
			return g.Barrier(s)
		}
		return g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum)
	},
}

// differ makes such a call, rank 1 being the odd one, and returns what the ranks say.
func differ(m *machine, groups []*comm.Group, call func(g *comm.Group, s device.Stream, odd int) *comm.Work) []error {
	return commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		odd := 0
		if g.Rank() == 1 {
			odd = 1
		}
		if err := call(g, s, odd).Wait(ctx); err != nil {
			return err
		}
		<-g.Done() // a Barrier may end before the others notice
		return g.Err()
	})
}

// leavesEarly lets rank 1 close its group while a call needs it: the others name it, with
// an error that says so.
func leavesEarly(t *testing.T, m *machine, groups []*comm.Group, says string) {
	t.Helper()
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 100)
		if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			return g.Close()
		}
		return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx)
	})
	if errs[1] != nil {
		t.Errorf("rank 1 could not close: %v", errs[1])
	}
	for _, r := range []int{0, 2} {
		if e, ok := errors.AsType[*transport.PeerError](errs[r]); !ok || e.Peer != 1 || !strings.Contains(e.Error(), says) {
			t.Errorf("rank %d: got %v", r, errs[r])
		}
	}
}

// abortedWhole looks at groups that were aborted: they close with that, and no stream waits.
func abortedWhole(t *testing.T, m *machine, groups []*comm.Group) {
	t.Helper()
	for r, g := range groups {
		if err := g.Close(); !errors.Is(err, g.Err()) {
			t.Errorf("rank %d: Close returned %v", r, err)
		}
	}
	if strings.Contains(m.log.String(), "still be on the GPU") {
		t.Errorf("streams wait on:\n%s", m.log)
	}
}
