package comm_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A rank that stays away from a call is named, and so is what the call goes over.
func TestRankThatSkipsAGPUDirectCall(t *testing.T) {
	comm.DirectBy(t, 256, 64)
	m, _, groups := directOn(t, "a b c", comm.Options{})
	computing := make(chan struct{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 100)
		if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		switch g.Rank() {
		case 0: // waits when the others are where they stay
			<-computing
			if err := awaitRunning(groups[1], 2); err != nil {
				return err
			}
			g.Impatient(soon)
		case 2:
			return computeForEver(g, computing)
		}
		w := g.AllReduce(s, x, dtype.F32, comm.Sum)
		g.AllReduce(s, x, dtype.F32, comm.Sum)
		return w.Wait(ctx)
	})
	e := failed[*comm.StuckError](t, groups, errs)
	for _, want := range []string{"in AllReduce(sum, f32, 100) #2 on " + e.GPU + " over gpudirect over rdma (fake", fmt.Sprintf("; rank 2 on %s has not entered AllReduce(sum, f32, 100) #2, it last finished AllReduce(sum, f32, 100) #1", groups[0].Host(2))} {
		if text := e.Error(); !strings.Contains(text, want) || len(e.Behind) != 1 {
			t.Errorf("got %q\nwant ... %q", text, want)
		}
	}
}

// A call that waits for a peer ends when the group does, whichever engine's call lies before
// it on the stream.
func TestAbortReachesGPUDirectCalls(t *testing.T) {
	cause := errors.New("the loss is NaN")
	for _, first := range []comm.Algorithm{comm.GPUDirect, comm.Staged} {
		t.Run(string(first), func(t *testing.T) {
			comm.DirectBy(t, 256, 64)
			m, _, groups := directOn(t, "a b c", comm.Options{})
			errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
				if g.Rank() == 2 {
					if err := errors.Join(awaitRunning(groups[0], 1), awaitRunning(groups[1], 1)); err != nil {
						return err
					}
					g.Abort(cause)
					return g.Barrier(s).Wait(ctx)
				}
				if first == comm.Staged {
					g.Barrier(s)
				}
				w := g.AllReduce(s, f32(s, 1000), dtype.F32, comm.Sum)
				g.Barrier(s)
				return failsBehind(s, w)
			})
			if e := failed[*comm.AbortError](t, groups, errs); e.Rank != 2 {
				t.Errorf("got %v", e)
			}
			abortedWhole(t, m, groups)
		})
	}
}

// Ranks that make different calls are told apart by the messages' headers, also where the
// calls are not of the same engine.
func TestMismatchOfGPUDirectCalls(t *testing.T) {
	for name, call := range oddCalls {
		t.Run(name, func(t *testing.T) {
			comm.DirectBy(t, 256, 64)
			m, _, groups := directOn(t, "a b c", comm.Options{})
			failed[*transport.MismatchError](t, groups, differ(m, groups, call))
		})
	}
}

// A rank that leaves while a call needs it is named.
func TestCloseTooEarlyForGPUDirectCalls(t *testing.T) {
	m, _, groups := directOn(t, "a b c", comm.Options{})
	leavesEarly(t, m, groups, "")
}

// A root has ended its part of a Broadcast when its slots are full, and may close the group
// before anybody takes what they hold.
func TestCloseBehindAGPUDirectBroadcast(t *testing.T) {
	m, _, groups := directOn(t, "a b", comm.Options{})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		if g.Rank() == 1 {
			<-groups[0].Done() // it closes
		}
		if err := g.Broadcast(s, f32(s, 100), dtype.F32, 0).Wait(ctx); err != nil {
			return err
		}
		return g.Close()
	})
}

// A card that does not get through to a peer ends the group, with both ends in the error.
func TestGPUDirectWriteThatFails(t *testing.T) {
	comm.DirectBy(t, 256, 64)
	m, f := fakeGPUs(t, 2), rdmatest.New(t)
	var cut atomic.Bool
	f.Fate = func(s *verbs.Send) rdmatest.Fate {
		if cut.Load() && s.Op != verbs.Read && s.Bytes == 256 { // a full slot
			return rdmatest.Fate{Status: verbs.RetryExceeded}
		}
		return rdmatest.Fate{}
	}
	groups := m.cards(t, "a b", f.API(), comm.Options{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 1024)
		if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		cut.Store(true)
		return failsBehind(s, g.AllReduce(s, x, dtype.F32, comm.Sum))
	})
	e := failed[*transport.PeerError](t, groups, errs)
	for _, want := range []string{"over RDMA, rank ", "MTU 4096, to fake0 port 1", "does not answer"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q does not say %q", e, want)
		}
	}
	if strings.Contains(m.log.String(), "still be on the GPU") {
		t.Errorf("streams wait on:\n%s", m.log)
	}
}

// A stream that fails under a call takes the group with it.
func TestFailedStreamEndsGPUDirectCalls(t *testing.T) {
	broken := errors.New("the loss is NaN")
	m, _, groups := directOn(t, "a b", comm.Options{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 100)
		if g.Rank() == 1 {
			s.(*cuda.Stream).Fail(broken)
		}
		return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx)
	})
	if e := failed[*comm.StreamError](t, groups, errs); e.Rank != 1 || !errors.Is(errs[1], broken) {
		t.Errorf("got %v", e)
	}
}
