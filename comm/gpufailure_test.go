package comm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// lastOn makes AllReduces on the GPU until one fails.
func lastOn(m *machine, groups []*comm.Group) []error {
	return commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 100)
		for {
			if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
				if s.(*cuda.Stream).Err() == nil {
					return fmt.Errorf("the stream goes on after %w", err)
				}
				return err
			}
		}
	})
}

// An error of NCCL on one rank, whenever it is met, ends all ranks with its text.
func TestNCCLThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		call  string
		async bool
	}{"a call": {"ncclAllReduce", false}, "in progress": {"carrying", false}, "between calls": {"async", false}, "on the stream": {"carrying", true}} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 3)
			groups := m.groups(t, comm.Options{})
			m.nccl.Async(c.async)
			m.nccl.Fail(c.call, 1, nccltest.RemoteError, 5)
			errs := lastOn(m, groups)
			e := failed[*comm.CallError](t, groups, errs)
			if e.Rank != 1 || e.Call.Kind != transport.AllReduce || !strings.Contains(e.Error(), c.call+" was told to fail") {
				t.Errorf("got %v", e)
			}
			if e, ok := errors.AsType[*nccl.Error](errs[1]); !ok || e.Result != nccltest.RemoteError {
				t.Errorf("the rank lost NCCL's error: %v", errs[1])
			}
		})
	}
}

// A call that waits on the GPU for a peer ends when the group does, and with it what
// waits for its stream, which must not take what the call left for its result.
func TestAbortReachesTheGPUs(t *testing.T) {
	cause := errors.New("the loss is NaN")
	m := newMachine(t, 3)
	groups := m.groups(t, comm.Options{})
	m.nccl.Async(true)
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		if g.Rank() == 2 {
			g.Abort(cause)
			return g.Barrier(s).Wait(ctx)
		}
		return failsBehind(s, g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum))
	})
	if e := failed[*comm.AbortError](t, groups, errs); e.Rank != 2 {
		t.Errorf("got %v", e)
	}
	for r, g := range groups {
		if err := g.Close(); !errors.Is(err, g.Err()) {
			t.Errorf("rank %d: Close returned %v", r, err)
		}
	}
}

// failsBehind waits for a call on s that is ended, and returns its error. Nothing that waits
// for s takes the place behind the call for reached.
func failsBehind(s device.Stream, w *comm.Work) error {
	compute, err := s.Device().NewStream("compute")
	if err != nil {
		return err
	}
	defer compute.Close()
	end := s.Record()
	compute.Wait(end)
	if err := end.Sync(ctx); err == nil {
		return errors.New("the place behind the call was reached")
	}
	err = w.Wait(ctx)
	if e := compute.Synchronize(ctx); e == nil || !errors.Is(e, err) {
		return fmt.Errorf("the stream that waited for the call has the error %v", e)
	}
	return err
}

// A rank that stays away from a call on the GPU is named, and so is one whose stream
// does not get to it.
func TestRankThatSkipsACallOnTheGPU(t *testing.T) {
	for name, c := range map[string]struct {
		async bool
		lags  func(m *machine, g *comm.Group, s device.Stream, lagging chan<- struct{}) error
		want  string
	}{
		"does not call": {true, func(m *machine, g *comm.Group, s device.Stream, lagging chan<- struct{}) error {
			return computeForEver(g, lagging)
		}, ", it last finished AllReduce(sum, f32, 100) #1, and is at "},
		"does not call, and NCCL waits in the call": {false, func(m *machine, g *comm.Group, s device.Stream, lagging chan<- struct{}) error {
			return computeForEver(g, lagging)
		}, ", it last finished AllReduce(sum, f32, 100) #1, and is at "},
		"its stream is behind": {true, func(m *machine, g *comm.Group, s device.Stream, lagging chan<- struct{}) error {
			m.driver.Hold(s.(*cuda.Stream).Handle())
			w := g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum)
			close(lagging)
			return w.Wait(ctx)
		}, ", it last finished AllReduce(sum, f32, 100) #1, it has enqueued AllReduce(sum, f32, 100) #2 on a stream whose work before it is not done"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 3)
			o := comm.Options{Timeout: time.Minute}
			if !c.async {
				o.Timeout = 3 * time.Second // NCCL's own time is that of the group for good
			}
			groups := m.groups(t, o)
			m.nccl.Async(c.async)
			lagging := make(chan struct{})
			errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
				x := f32(s, 100)
				if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
					return err
				}
				host := device.NewCPUStream("host", nil)
				defer host.Close()
				if err := g.Barrier(host).Wait(ctx); err != nil {
					return err
				}
				switch g.Rank() {
				case 0: // waits when the others are where they stay
					<-lagging
					if c.async {
						if err := awaitRunning(groups[1], 3); err != nil {
							return err
						}
						g.Impatient(soon)
					}
				case 2:
					m.nccl.Deaf(name == "its stream is behind")
					return c.lags(m, g, s, lagging)
				}
				return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx)
			})
			e := failed[*comm.StuckError](t, groups, errs)
			waited := soon
			if !c.async {
				waited = o.Timeout
			}
			want := fmt.Sprintf("waited %s in AllReduce(sum, f32, 100) #3 on %s over NCCL, NVLink (P2P/CUMEM), 24 channels; rank 2 on %s has not entered AllReduce(sum, f32, 100) #3", waited, e.GPU, groups[2].Host(2))
			if text := e.Error(); !strings.Contains(text, want) || !strings.Contains(text, strings.ReplaceAll(c.want, "#2", "#3")) || len(e.Behind) != 1 {
				t.Errorf("got %q\nwant ... %q ... %q", text, want, c.want)
			}
		})
	}
}

// A rank that waits in a call is not taken for one that stays away, however many calls
// it has enqueued behind it; neither is what its host memory did forgotten.
func TestStuckCallBehindManyOthers(t *testing.T) {
	m := newMachine(t, 3)
	groups := m.groups(t, comm.Options{Timeout: time.Minute})
	m.nccl.Async(true)
	computing := make(chan struct{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 100)
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		if err := errors.Join(g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx), g.Barrier(host).Wait(ctx)); err != nil {
			return err
		}
		switch g.Rank() {
		case 0: // waits when the others are where they stay
			<-computing
			if err := awaitRunning(groups[1], 3); err != nil {
				return err
			}
			g.Impatient(soon)
		case 2:
			return computeForEver(g, computing)
		}
		w := g.AllReduce(s, x, dtype.F32, comm.Sum)
		for range 100 {
			g.AllReduce(s, x, dtype.F32, comm.Sum)
		}
		for r := g.Recent()[0]; r.State != comm.Running || r.String() != w.String()+" running"; r = g.Recent()[0] {
			if g.Err() != nil {
				return fmt.Errorf("the running call is not among the recent ones, of which %s is the oldest", r)
			}
		}
		return w.Wait(ctx)
	})
	e := failed[*comm.StuckError](t, groups, errs)
	if len(e.Behind) != 1 || e.Behind[0].Rank != 2 || e.Call.Seq != 3 {
		t.Fatalf("got %v", e)
	}
	if p := e.Behind[0]; p.GPU.Ended == nil || p.GPU.Ended.Seq != 1 || p.Ended == nil || p.Ended.Seq != 2 {
		t.Errorf("rank 2 is at %+v", p)
	}
}

// Ranks that make different calls are named: at once with Check, else when the call is
// late.
func TestMismatchOnGPUs(t *testing.T) {
	for name, call := range map[string]func(g *comm.Group, s device.Stream, odd int) *comm.Work{
		"count": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
			return g.AllReduce(s, f32(s, 100+odd), dtype.F32, comm.Sum)
		},
		"dtype": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
			return g.AllReduce(s, f32(s, 100), [...]dtype.DType{dtype.F32, dtype.I32}[odd], comm.Sum)
		},
		"op": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
			return g.AllReduce(s, f32(s, 100), dtype.F32, [...]comm.Op{comm.Sum, comm.Max}[odd])
		},
		"root": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
			return g.Broadcast(s, f32(s, 100), dtype.F32, odd)
		},
		"kind": func(g *comm.Group, s device.Stream, odd int) *comm.Work {
			if odd == 1 {
				return g.Barrier(s)
			}
			return g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum)
		},
	} {
		for _, check := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, check %v", name, check), func(t *testing.T) {
				m := newMachine(t, 3)
				groups := m.groups(t, comm.Options{Check: check, Timeout: time.Minute})
				m.nccl.Async(true)
				errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
					if err := g.Barrier(s).Wait(ctx); err != nil {
						return err
					}
					odd := 0
					if g.Rank() == 1 {
						odd = 1
					}
					if g.Rank() == 0 && !check { // waits when the others do
						if err := errors.Join(awaitRunning(groups[1], 2), awaitRunning(groups[2], 2)); err != nil {
							return err
						}
						g.Impatient(soon)
					}
					if err := call(g, s, odd).Wait(ctx); err != nil {
						return err
					}
					<-g.Done() // it made its call before the others
					return g.Err()
				})
				e := failed[*transport.MismatchError](t, groups, errs)
				if e.Rank != 1 && e.Peer != 1 || e.Mine.Seq != 2 || e.Theirs.Seq != 2 {
					t.Errorf("got %v", e)
				}
			})
		}
	}
}

// With Check, sends and receives are compared too, and calls that agree are made.
func TestCheckedCalls(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{Check: true})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		for _, c := range commtest.Cases(2, 7) {
			if err := commtest.Collectives(ctx, g, s, c); err != nil {
				return err
			}
		}
		return nil
	})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		var w *comm.Work
		if g.Rank() == 0 {
			w = g.Send(s, f32(s, 3), dtype.F32, 1)
		} else {
			w = g.Recv(s, f32(s, 4), dtype.F32, 0)
		}
		if err := w.Wait(ctx); err != nil {
			return err
		}
		<-g.Done()
		return g.Err()
	})
	failed[*transport.MismatchError](t, groups, errs)
}

// With Check, ranks that make the same call in different places, or by different
// means, are told apart.
func TestComparesHowCallsAreMade(t *testing.T) {
	groups := commtest.Groups(t, 2, comm.Options{})
	for _, how := range []struct{ mine, theirs string }{
		{"copy-engines at byte 0 of Alloc 1", "copy-engines at byte 0 of Alloc 1"},
		{"copy-engines at byte 0 of Alloc 1", "copy-engines at byte 256 of Alloc 1"},
		{"nccl", "copy-engines at byte 0 of Alloc 1"},
	} {
		if err := groups[0].Compare(how.theirs); err != nil {
			t.Fatal(err)
		}
		err := groups[1].Compare(how.mine)
		if how.mine == how.theirs {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		e, ok := errors.AsType[*comm.CallError](err)
		if !ok || e.Rank != 1 || !strings.Contains(e.Error(), "by "+how.mine+", and rank 0 by "+how.theirs) {
			t.Errorf("got %v", err)
		}
	}
}

// All ranks are in the call, and NCCL does not finish it: the error says how to go on.
func TestCallThatNCCLDoesNotFinish(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{Timeout: time.Minute})
	m.nccl.Async(true)
	m.nccl.Deaf(true)
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		if g.Rank() == 0 { // waits when the other does
			if err := awaitRunning(groups[1], 1); err != nil {
				return err
			}
			g.Impatient(soon)
		}
		return g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum).Wait(ctx)
	})
	e := failed[*comm.StuckError](t, groups, errs)
	if text := e.Error(); !strings.Contains(text, "all ranks have got to it") || !strings.Contains(text, "Options.Check") {
		t.Errorf("got %v", text)
	}
}

// A stream that fails under a call takes the group with it.
func TestFailedGPUStreamEndsTheGroup(t *testing.T) {
	broken := errors.New("the loss is NaN")
	for name, before := range map[string]bool{"before the call": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 3)
			groups := m.groups(t, comm.Options{})
			m.nccl.Async(true)
			m.nccl.Deaf(true)
			errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
				x := f32(s, 100)
				if g.Rank() != 1 {
					return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx)
				}
				if before {
					s.(*cuda.Stream).Fail(broken)
				}
				w := g.AllReduce(s, x, dtype.F32, comm.Sum)
				s.(*cuda.Stream).Fail(broken)
				return w.Wait(ctx)
			})
			e := failed[*comm.StreamError](t, groups, errs)
			if e.Rank != 1 || !strings.Contains(e.Error(), "the loss is NaN") || !errors.Is(errs[1], broken) {
				t.Errorf("got %v", e)
			}
		})
	}
}

// A rank that leaves while a call on the GPUs needs it is named.
func TestCloseTooEarlyOnGPUs(t *testing.T) {
	m := newMachine(t, 3)
	groups := m.groups(t, comm.Options{})
	m.nccl.Async(true)
	leavesEarly(t, m, groups, "closed the group")
}

func TestGPUCallsOnAClosedGroup(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{})
	if err := commtest.Close(groups); err != nil {
		t.Fatal(err)
	}
	for r, err := range lastOn(m, groups) {
		if !errors.Is(err, comm.ErrClosed) {
			t.Errorf("rank %d: got %v", r, err)
		}
	}
}
