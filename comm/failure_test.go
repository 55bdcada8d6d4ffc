package comm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

var transports = []string{"local", "tcp", "shm"}

// everywhere runs f as a subtest over every transport, and over two hosts.
func everywhere(t *testing.T, n int, o comm.Options, f func(t *testing.T, groups []*comm.Group)) {
	commtest.CheckLeaks(t)
	for _, tr := range transports {
		o.Transport = tr
		t.Run(tr, func(t *testing.T) { f(t, commtest.Groups(t, n, o)) })
	}
	t.Run("twolevel", func(t *testing.T) {
		hosts := make([]string, n)
		for r := range hosts {
			hosts[r] = string(rune('a' + r%2))
		}
		o.Transport = "auto"
		groups, err := comm.LocalOn(hosts, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { commtest.Close(groups) })
		f(t, groups)
	})
}

// failed checks that every rank's error holds an E that is the same everywhere,
// and that the group is dead for all.
func failed[E error](t *testing.T, groups []*comm.Group, errs []error) E {
	t.Helper()
	var first E
	for r, err := range errs {
		dead, ok := errors.AsType[*comm.DeadError](err)
		if !ok {
			t.Fatalf("rank %d: got %v, want a DeadError", r, err)
		}
		e, ok := errors.AsType[E](err)
		if !ok {
			t.Fatalf("rank %d: got %v (%T), want %T", r, err, dead.Err, first)
		}
		if r == 0 {
			first = e
		} else if e.Error() != first.Error() {
			t.Errorf("ranks disagree: rank 0 says %q, rank %d says %q", first, r, e)
		}
		if groups[r].Err() == nil {
			t.Errorf("rank %d: the group lives on", r)
		}
	}
	return first
}

// last runs f and then AllReduces until one fails: a rank whose own messages are in
// order learns of the others' quarrel a moment later.
func last(groups []*comm.Group, f func(g *comm.Group, s *device.CPUStream) *comm.Work) []error {
	return commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
		if w := f(g, s); w != nil {
			if err := w.Wait(context.Background()); err != nil {
				return err
			}
		}
		for {
			if err := g.AllReduce(s, device.Of([]int64{1, 2, 3}), dtype.I64, comm.Sum).Wait(context.Background()); err != nil {
				return err
			}
		}
	})
}

// Ranks that call different things all learn who called what.
func TestMismatch(t *testing.T) {
	f32 := func(n int) device.Buffer { return device.Of(make([]float32, n)) }
	for name, call := range map[string]func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work{
		"count": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			n := 1000
			if odd {
				n = 1001
			}
			return g.AllReduce(s, f32(n), dtype.F32, comm.Sum)
		},
		"zero": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			n := 0
			if odd {
				n = 1
			}
			return g.AllReduce(s, f32(n), dtype.F32, comm.Sum)
		},
		"dtype": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			dt := dtype.F32
			if odd {
				dt = dtype.I32
			}
			return g.AllReduce(s, f32(64), dt, comm.Sum)
		},
		"op": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			op := comm.Sum
			if odd {
				op = comm.Max
			}
			return g.AllReduce(s, f32(1<<18), dtype.F32, op)
		},
		"root": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			root := 0
			if odd {
				root = 2
			}
			return g.Broadcast(s, f32(8), dtype.F32, root)
		},
		"kind": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			if odd {
				return g.AllGather(s, f32(9), f32(3), dtype.F32)
			}
			return g.AllReduce(s, f32(3), dtype.F32, comm.Sum)
		},
		"skipped": func(g *comm.Group, s *device.CPUStream, odd bool) *comm.Work {
			if odd {
				return nil
			}
			return g.AllReduce(s, f32(5), dtype.F32, comm.Sum)
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, 3, comm.Options{Timeout: 20 * time.Second}, func(t *testing.T, groups []*comm.Group) {
				errs := last(groups, func(g *comm.Group, s *device.CPUStream) *comm.Work {
					return call(g, s, g.Rank() == 2)
				})
				e := failed[*transport.MismatchError](t, groups, errs)
				if e.Rank != 2 && e.Peer != 2 {
					t.Errorf("rank 2 was odd, but: %v", e)
				}
				if (name == "root" || name == "kind") && (e.Mine.Seq != 1 || e.Theirs.Seq != 1) {
					t.Errorf("the first calls differ, but: %v", e)
				}
			})
		})
	}
}

// Ranks that only send to each other, and then call nothing more, learn of it too.
func TestMismatchOfCallsThatNobodyWaitsIn(t *testing.T) {
	everywhere(t, 2, comm.Options{Timeout: 20 * time.Second}, func(t *testing.T, groups []*comm.Group) {
		errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
			g.Broadcast(s, device.Of(make([]float32, 8)), dtype.F32, g.Rank())
			<-g.Done()
			return g.Err()
		})
		failed[*transport.MismatchError](t, groups, errs)
	})
}

// soon is the time that a rank has which waits in vain, once the others are where the
// test wants them.
const soon = 100 * time.Millisecond

// awaitRunning yields until a rank has got to a call.
func awaitRunning(g *comm.Group, seq uint64) error {
	there := func(r comm.Record) bool { return r.Seq == seq && r.State >= comm.Running }
	for end := time.Now().Add(30 * time.Second); !slices.ContainsFunc(g.Recent(), there); runtime.Gosched() {
		if time.Now().After(end) {
			return fmt.Errorf("rank %d does not get to call #%d: %v", g.Rank(), seq, g.Err())
		}
	}
	return nil
}

// computeForEver is where the rank that is behind is found, once computing is closed.
func computeForEver(g *comm.Group, computing chan<- struct{}) error {
	close(computing)
	for g.Err() == nil { // it computes, and knows of nothing
	}
	return g.Err()
}

// A rank that stays away is named, with what it did last and what it does now.
func TestRankThatSkipsACall(t *testing.T) {
	everywhere(t, 3, comm.Options{Timeout: time.Minute}, func(t *testing.T, groups []*comm.Group) {
		computing := make(chan struct{})
		errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
			x := device.Of(make([]float32, 1024))
			if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(context.Background()); err != nil {
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
				compute := device.NewCPUStream("compute", nil)
				compute.Do("forward", func() error { return computeForEver(g, computing) })
				return compute.Close()
			}
			return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(context.Background())
		})
		e := failed[*comm.StuckError](t, groups, errs)
		want := "rank 2 on " + groups[2].Host(2) + " has not entered AllReduce(sum, f32, 1024) #2, it last finished AllReduce(sum, f32, 1024) #1"
		if !strings.Contains(e.Error(), want) || len(e.Behind) != 1 {
			t.Errorf("got %q, want ... %q", e, want)
		}
		if where := " comm_test.computeForEver (failure_test.go:"; !strings.Contains(e.Error(), where) || strings.Contains(e.Error(), "comm.(*slot).execute") {
			t.Errorf("got %q, want ... %q, and no stream that waits", e, where)
		}
		if late, ok := errors.AsType[*transport.TimeoutError](errs[0]); !ok || !late.Timeout() {
			t.Errorf("%v is no timeout", errs[0])
		}
	})
}

// One rank that is silent makes nobody else so: each of the others has the same
// time to answer, and is heard.
func TestSilentRanksAreTheOnlyOnesNamed(t *testing.T) {
	commtest.CheckLeaks(t)
	for _, mute := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(mute), func(t *testing.T) {
			t.Parallel()
			groups, err := comm.LocalMute(4, mute, comm.Options{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
				switch g.Rank() {
				case mute: // enters no call, and says nothing
					<-g.Done()
					return g.Err()
				case 2: // waits when the others do
					for r, other := range groups {
						if r == mute || r == 2 {
							continue
						}
						if err := awaitRunning(other, 1); err != nil {
							return err
						}
					}
					g.Impatient(soon)
				}
				return g.AllReduce(s, device.Of(make([]float32, 1024)), dtype.F32, comm.Sum).Wait(context.Background())
			})
			e := failed[*comm.StuckError](t, groups, errs)
			if !slices.Equal(e.Silent, []int{mute}) || len(e.Behind) > 0 {
				t.Errorf("silent %v, behind %v; want rank %d silent, none behind", e.Silent, e.Behind, mute)
			}
			commtest.Close(groups)
		})
	}
}

func TestAbortReachesEveryRank(t *testing.T) {
	cause := errors.New("the loss is NaN")
	everywhere(t, 4, comm.Options{}, func(t *testing.T, groups []*comm.Group) {
		errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
			x := device.Of(make([]float32, 100))
			g.AllReduce(s, x, dtype.F32, comm.Sum)
			if g.Rank() == 3 {
				g.Abort(cause)
			}
			return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(context.Background())
		})
		e := failed[*comm.AbortError](t, groups, errs)
		if e.Rank != 3 || !strings.Contains(e.Error(), "rank 3 on "+groups[0].Host(3)+" called Abort: the loss is NaN") {
			t.Errorf("got %v", e)
		}
		if !errors.Is(errs[3], cause) {
			t.Errorf("the aborting rank lost its cause: %v", errs[3])
		}
	})
}

// A stream that fails under a call takes the group with it: the others would wait.
func TestFailedStreamEndsTheGroup(t *testing.T) {
	broken := errors.New("the loss is NaN")
	everywhere(t, 3, comm.Options{}, func(t *testing.T, groups []*comm.Group) {
		errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
			enqueued := make(chan struct{})
			if g.Rank() == 1 {
				s.Do("loss", func() error { <-enqueued; return broken })
			}
			w := g.AllReduce(s, device.Of(make([]float32, 100)), dtype.F32, comm.Sum)
			close(enqueued)
			return w.Wait(context.Background())
		})
		e := failed[*comm.StreamError](t, groups, errs)
		if e.Rank != 1 || !strings.Contains(e.Error(), "the loss is NaN") {
			t.Errorf("got %v", e)
		}
	})
}

// A call that cannot be made fails everywhere, and poisons the stream.
func TestImpossibleCalls(t *testing.T) {
	commtest.CheckLeaks(t)
	b := func(n int) device.Buffer { return device.Of(make([]float32, n)) }
	same := b(8)
	for name, call := range map[string]func(g *comm.Group, s *device.CPUStream) *comm.Work{
		"there is no element type": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllReduce(s, b(4), dtype.Invalid, comm.Sum)
		},
		"there is no operation": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllReduce(s, b(4), dtype.F32, 9)
		},
		"root 2: want a rank": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.Broadcast(s, b(4), dtype.F32, 2)
		},
		"root -1: want a rank": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.Broadcast(s, b(4), dtype.F32, -1)
		},
		"do not hold": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllGather(s, b(4), b(4), dtype.F32)
		},
		"overlap": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllReduceInto(s, same.Slice(0, 16), same.Slice(4, 20), dtype.F32, comm.Sum)
		},
		"on another device": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllReduce(s, device.At(4096, 16), dtype.F32, comm.Sum)
		},
		"counts with": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.AllToAllV(s, b(4), b(4), []int{2, 2}, []int{2, 1}, dtype.F32)
		},
		"want another rank": func(g *comm.Group, s *device.CPUStream) *comm.Work {
			return g.Send(s, b(4), dtype.F32, g.Rank())
		},
	} {
		t.Run(name, func(t *testing.T) {
			groups := commtest.Groups(t, 2)
			errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
				if g.Rank() == 1 {
					err := call(g, s).Wait(context.Background())
					if s.Err() == nil && s.Synchronize(context.Background()) == nil {
						return errors.New("the stream goes on")
					}
					return err
				}
				return g.AllReduce(s, b(4), dtype.F32, comm.Sum).Wait(context.Background())
			})
			e := failed[*comm.CallError](t, groups, errs)
			if e.Rank != 1 || !strings.Contains(e.Error(), name) {
				t.Errorf("got %v", e)
			}
		})
	}
}

// A rank that closes while others still need it is an error, not a hang; one that
// closes when everything is done is none.
func TestCloseTooEarly(t *testing.T) {
	everywhere(t, 3, comm.Options{Timeout: 20 * time.Second}, func(t *testing.T, groups []*comm.Group) {
		errs := commtest.Each(groups, func(g *comm.Group, s *device.CPUStream) error {
			x := device.Of(make([]float32, 1000))
			if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(context.Background()); err != nil {
				return err
			}
			if g.Rank() == 1 {
				return g.Close()
			}
			return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(context.Background())
		})
		if errs[1] != nil {
			t.Errorf("rank 1 could not close: %v", errs[1])
		}
		for _, r := range []int{0, 2} {
			if e, ok := errors.AsType[*transport.PeerError](errs[r]); !ok || e.Peer != 1 || !strings.Contains(e.Error(), "closed the group") {
				t.Errorf("rank %d: got %v", r, errs[r])
			}
		}
	})
}

func TestCallsOnAClosedGroup(t *testing.T) {
	everywhere(t, 2, comm.Options{}, func(t *testing.T, groups []*comm.Group) {
		if err := commtest.Close(groups); err != nil {
			t.Fatal(err)
		}
		for r, err := range last(groups, func(*comm.Group, *device.CPUStream) *comm.Work { return nil }) {
			if !errors.Is(err, comm.ErrClosed) {
				t.Errorf("rank %d: got %v", r, err)
			}
		}
	})
}

func TestRanksThatDoNotFit(t *testing.T) {
	commtest.CheckLeaks(t)
	store := commtest.Groups(t, 1)[0].Store()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := func(rank int, name string) comm.Options {
		return comm.Options{Rank: rank, Size: 2, Store: store, Name: name, Transport: "tcp"}
	}
	try := func(name string, os ...comm.Options) error {
		errs := make(chan error, len(os))
		for _, o := range os {
			go func() {
				g, err := comm.New(ctx, o)
				if err == nil {
					err = g.Close()
				}
				errs <- err
			}()
		}
		var all []error
		for range os {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	}
	wide := options(1, "options")
	wide.Chunk = 1 << 16
	if err := try("", options(0, "options"), wide); err == nil || !strings.Contains(err.Error(), "has other options") {
		t.Errorf("got %v", err)
	}
	if err := try("", options(0, "twice"), options(1, "twice"), options(1, "twice")); err == nil || !strings.Contains(err.Error(), "another process is rank 1 already") {
		t.Errorf("got %v", err)
	}
	nowhere := options(0, "interface")
	nowhere.Interface = "nosuch0"
	if err := try("", nowhere, options(1, "interface")); err == nil || !strings.Contains(err.Error(), `interface "nosuch0"`) {
		t.Errorf("got %v", err)
	}
	short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	if _, err := comm.New(short, options(0, "alone")); err == nil || !strings.Contains(err.Error(), "rank 1 has not joined") {
		t.Errorf("got %v", err)
	}
	for _, bad := range []comm.Options{
		{Rank: 2, Size: 2, Store: store}, {Size: 1}, {Size: 1, Store: store, Transport: "avian"},
		{Size: 1, Store: store, Chunk: 1}, {Size: 1, Store: store, Algo: "fast"}, {Size: 1, Store: store, Transport: "local"},
		{Size: 1, Store: store, Timeout: -1}, {Size: 1, Store: store, Conns: 99},
		{Size: 1, Store: store, Ports: "many"}, {Size: 1, Store: store, Ports: "40100-40000"}, {Size: 1, Store: store, Ports: "1-70000"},
		{Size: 1, Store: store, Algo: comm.TwoLevel},
	} {
		if _, err := comm.New(ctx, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if _, err := comm.LocalOn([]string{"a", "b"}, comm.Options{Transport: "shm", Name: "far"}); err == nil || !strings.Contains(fmt.Sprint(err), "ranks of one host") {
		t.Errorf("got %v", err)
	}
}
