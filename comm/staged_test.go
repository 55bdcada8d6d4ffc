package comm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// stagedOn makes a group of fake GPUs, one for each of the hosts named, with engine ring,
// whose memory goes through the hosts'.
func stagedOn(t *testing.T, hosts string, o comm.Options) (*machine, []*comm.Group) {
	t.Helper()
	names := strings.Fields(hosts)
	m := newMachine(t, len(names))
	comm.EmulateStreams(t, m.driver)
	if o.Engine == "" {
		o.Engine = "ring"
	}
	groups, err := comm.LocalOn(names, m.options(o)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { commtest.Close(groups) })
	return m, groups
}

// Every collective, type, operation and aliasing, over tcp, over shared memory, and over
// both; calls fit a slot, or go in many pieces.
func TestStagedCollectives(t *testing.T) {
	for _, c := range []struct{ hosts, over string }{{"a b", "tcp"}, {"a b c", "tcp"}, {"a a b", "tcp"}, {"a a", "shared memory"}} {
		for slot, counts := range map[int][]int{64 << 10: {0, 13}, 256: {1, 40}} {
			t.Run(fmt.Sprint(strings.ReplaceAll(c.hosts, " ", ""), slot), func(t *testing.T) {
				comm.StageBy(t, slot)
				m, groups := stagedOn(t, c.hosts, comm.Options{})
				n := len(groups)
				commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
					for _, c := range commtest.Cases(n, counts...) {
						if err := commtest.Collectives(ctx, g, s, c); err != nil {
							return err
						}
					}
					return nil
				})
				want := fmt.Sprintf("staged in pinned memory of the host, over %s, %d ranks", c.over, n)
				if got := groups[0].GPUEngine(); got != want || strings.Count(m.log.String(), want+"\" group=world rank=0") != 1 { // GPUs that lie make all ranks say it
					t.Errorf("the engine is %q, want %q; logged:\n%s", got, want, m.log)
				}
				if err := commtest.Close(groups); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A rank makes all its calls, on two streams in turns, before another makes the first:
// nobody waits in a call, and the calls of a rank keep their order.
func TestStagedRow(t *testing.T) {
	comm.StageBy(t, 1024) // arrays of 5 pieces
	m, groups := stagedOn(t, "a b c", comm.Options{})
	inARow(t, m, groups, func(w *comm.Work) error {
		if r := w.Result(); r.Algorithm != comm.Staged || r.Sent+r.Received == 0 {
			return fmt.Errorf("%s: %+v", w, r)
		}
		return nil
	})
	if last := groups[0].Recent()[0]; !last.GPU || last.Algorithm != comm.Staged || last.State != comm.Ended {
		t.Errorf("%+v", last)
	}
}

// Calls on host memory, parts of the group, memory of the group, and comparing calls.
func TestStagedBesideTheRest(t *testing.T) {
	m, groups := stagedOn(t, "a b c", comm.Options{Check: true})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		x, err := g.Alloc(4000)
		if err != nil {
			return err
		}
		for range 10 {
			w := g.AllReduce(s, x, dtype.F32, comm.Sum)
			if err := commtest.Collectives(ctx, g, host, commtest.Case{Count: 17, DType: dtype.BF16}); err != nil {
				return err
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		sub, err := g.Sub([]int{2, 0, 1})
		if err != nil {
			return err
		}
		if err := commtest.Collectives(ctx, sub, s, commtest.Case{Count: 5, DType: dtype.F32}); err != nil {
			return err
		}
		return sub.Close()
	})
}

// The log says once why the host moves what GPUs hold, and why network cards do not.
func TestStagedSaysWhy(t *testing.T) {
	t.Run("ring", func(t *testing.T) {
		m, _ := stagedOn(t, "a b", comm.Options{})
		for _, want := range []string{"level=INFO", "engine ring moves GPU memory within a host, between GPUs that reach each other's: the ranks are on 2 hosts", `no GPUDirect"="no RDMA: rank 0 on a: this host has no RDMA device`} {
			if strings.Count(m.log.String(), want) != 1 {
				t.Errorf("%q is not logged once:\n%s", want, m.log)
			}
		}
	})
	t.Run("no NCCL", func(t *testing.T) {
		m := newMachine(t, 2)
		comm.EmulateStreams(t, m.driver)
		t.Setenv("GORUN_NCCL_LIB", "/nonexistent/libnccl.so.2")
		groups, err := comm.LocalOn([]string{"a", "b"}, m.options(comm.Options{})...)
		if err != nil {
			t.Fatal(err)
		}
		defer commtest.Close(groups)
		commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
			return commtest.Collectives(ctx, g, s, commtest.Case{Count: 5, DType: dtype.F32})
		})
		if want := "2 ranks on GPUs need NCCL: rank 0 on a: NCCL: GORUN_NCCL_LIB names a file that does not open"; strings.Count(m.log.String(), want) != 1 {
			t.Errorf("%q is not logged once:\n%s", want, m.log)
		}
	})
}

// auto keeps NCCL where it can be had.
func TestNCCLGoesBeforeStaging(t *testing.T) {
	m, groups := stagedOn(t, "a b", comm.Options{Engine: "auto"})
	if got := groups[1].GPUEngine(); !strings.HasPrefix(got, "nccl ") {
		t.Errorf("the engine is %q; logged:\n%s", got, m.log)
	}
}

// Where staging cannot be, calls fail with the reason, and where a rank lacks the memory
// for it the group is not made.
func TestStagingThatCannotBe(t *testing.T) {
	m := newMachine(t, 2)
	groups, err := comm.LocalOn([]string{"a", "b"}, m.options(comm.Options{Engine: "ring"})...)
	if err != nil {
		t.Fatal(err)
	}
	want := "the ranks are on 2 hosts; and through the host: rank 0 on a: a stream of cuda:0 does not wait for a word in the host's memory"
	for _, g := range groups {
		if got := g.GPUEngine(); !strings.Contains(got, want) || !strings.HasPrefix(got, "none: ") {
			t.Errorf("got %q\nwant ... %q", got, want)
		}
	}
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
	for call, pass := range map[string]int{"cuMemHostAlloc": 3, "cuMemHostRegister": 1} {
		t.Run(call, func(t *testing.T) {
			m := newMachine(t, 2)
			comm.EmulateStreams(t, m.driver)
			m.driver.FailAfter(call, pass, 1)
			_, err := comm.LocalOn([]string{"a", "b"}, m.options(comm.Options{Engine: "ring"})...)
			if err == nil || !strings.Contains(err.Error(), call+"(") {
				t.Errorf("got %v", err)
			}
			m.driver.Fail(call, 0)
		})
	}
}

// A rank that stays away from a call is named, and so is what the call goes over.
func TestRankThatSkipsAStagedCall(t *testing.T) {
	for hosts, over := range map[string]string{"a b c": "tcp", "a a a": "shared memory"} {
		t.Run(over, func(t *testing.T) {
			comm.StageBy(t, 256)
			m, groups := stagedOn(t, hosts, comm.Options{})
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
			want := fmt.Sprintf("in AllReduce(sum, f32, 100) #2 on %s over pinned host memory and %s; rank 2 on %s has not entered AllReduce(sum, f32, 100) #2, it last finished AllReduce(sum, f32, 100) #1, and is at ",
				e.GPU, over, groups[0].Host(2))
			if text := e.Error(); !strings.Contains(text, want) || len(e.Behind) != 1 {
				t.Errorf("got %q\nwant ... %q", text, want)
			}
		})
	}
}

// A call that waits for a peer ends when the group does, and with it what waits for its
// stream, which must not take what the call left for its result.
func TestAbortReachesStagedCalls(t *testing.T) {
	cause := errors.New("the loss is NaN")
	comm.StageBy(t, 256)
	m, groups := stagedOn(t, "a b c", comm.Options{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		if g.Rank() == 2 {
			if err := errors.Join(awaitRunning(groups[0], 1), awaitRunning(groups[1], 1)); err != nil {
				return err
			}
			g.Abort(cause)
			return g.Barrier(s).Wait(ctx)
		}
		return failsBehind(s, g.AllReduce(s, f32(s, 1000), dtype.F32, comm.Sum))
	})
	if e := failed[*comm.AbortError](t, groups, errs); e.Rank != 2 {
		t.Errorf("got %v", e)
	}
	abortedWhole(t, m, groups)
}

// Ranks that make different calls are told apart at once, by the messages' headers.
func TestMismatchOfStagedCalls(t *testing.T) {
	for name, call := range oddCalls {
		for _, hosts := range []string{"a b c", "a a a"} {
			t.Run(name+" "+hosts, func(t *testing.T) {
				comm.StageBy(t, 256)
				m, groups := stagedOn(t, hosts, comm.Options{})
				errs := differ(m, groups, call)
				if e := failed[*transport.MismatchError](t, groups, errs); e.Mine.Seq != 1 || e.Theirs.Seq != 1 || e.Mine.Count%100 != 0 || e.Theirs.Count%100 != 0 {
					t.Errorf("got %v", e)
				}
			})
		}
	}
}

// A stream that fails under a call takes the group with it.
func TestFailedStreamEndsStagedCalls(t *testing.T) {
	broken := errors.New("the loss is NaN")
	m, groups := stagedOn(t, "a b", comm.Options{})
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

// A rank that leaves while a call needs it is named.
func TestCloseTooEarlyForStagedCalls(t *testing.T) {
	m, groups := stagedOn(t, "a b c", comm.Options{})
	leavesEarly(t, m, groups, "")
}

// A process that dies in the midst of calls is named by the other one.
func TestProcessWithStagedCallsThatDied(t *testing.T) {
	driver := cudatest.Fake(t)
	t.Setenv("GORUN_CUDA_LIB", driver.Path)
	t.Setenv("GORUN_FAKE_GPUS", "2")
	t.Setenv("COMM_TEST_ENGINE", "ring")
	t.Setenv("COMM_TEST_STREAMS", "emulated")
	start := time.Now()
	outs := world(t, 2, "gpu dies", "tcp")
	if !strings.Contains(outs[0], "staged in pinned memory of the host, over tcp") || !strings.HasSuffix(outs[1], "[exit status 3]") || !strings.Contains(outs[0], "rank 1 on ") || !strings.HasSuffix(outs[0], "[exit status 2]") {
		t.Errorf("the ranks say %q", outs)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
