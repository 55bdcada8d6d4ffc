package comm_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// machine is fake GPUs with a fake NCCL.
type machine struct {
	driver  *cudatest.Driver
	nccl    *nccltest.Library
	devices []device.Device
	log     *logged
}

// logged is what groups have logged at info level and above.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newMachine(t *testing.T, gpus int) *machine { return machineOf(t, gpus, true) }

// fakeGPUs is a machine without NCCL.
func fakeGPUs(t *testing.T, gpus int) *machine { return machineOf(t, gpus, false) }

func machineOf(t *testing.T, gpus int, nccl bool) *machine {
	t.Helper()
	commtest.CheckLeaks(t)
	m := &machine{driver: cudatest.FakeOf(t, cudatest.Machine{GPUs: gpus}), log: &logged{}}
	if nccl {
		m.nccl = nccltest.Fake(t, m.driver)
	}
	t.Cleanup(func() {
		for _, d := range m.devices {
			if err := d.(*cuda.Device).Close(); err != nil {
				t.Error(err)
			}
		}
		if live := m.driver.Live(); len(live) > 0 {
			t.Errorf("left over on the GPUs: %v", live)
		}
	})
	for i := range gpus {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		m.devices = append(m.devices, d)
	}
	return m
}

// options are o for each rank, with its GPU.
func (m *machine) options(o comm.Options) []comm.Options {
	all := make([]comm.Options, len(m.devices))
	for i, d := range m.devices {
		all[i] = o
		all[i].Device = d
		all[i].Logger = slog.New(slog.NewTextHandler(m.log, nil))
		if o.Timeout == 0 {
			all[i].Timeout = time.Minute
		}
	}
	return all
}

// groups joins all GPUs.
func (m *machine) groups(t *testing.T, o comm.Options) []*comm.Group {
	t.Helper()
	return commtest.Groups(t, len(m.devices), m.options(o)...)
}

// f32 is n floats on the stream's device, which lie there until it is closed.
func f32(s device.Stream, n int) device.Buffer {
	b, err := s.Device().Alloc(4 * n)
	if err != nil {
		panic(err)
	}
	return b
}

// Every collective, type, operation and aliasing, over NCCL of either way to be made,
// and over copies where there is one rank.
func TestCollectivesOnGPUs(t *testing.T) {
	for _, c := range []struct {
		ranks, release int
		engine         string
	}{{1, 22803, "auto"}, {1, 22803, "nccl"}, {2, 22803, "auto"}, {3, 22203, "nccl"}, {4, 23007, "auto"}} {
		t.Run(fmt.Sprintf("%d ranks, %s, %d", c.ranks, c.engine, c.release), func(t *testing.T) {
			m := newMachine(t, c.ranks)
			m.nccl.Version(c.release)
			groups := m.groups(t, comm.Options{Engine: c.engine})
			commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
				for _, c := range commtest.Cases(g.Size(), 0, 1, 13, 300) {
					if err := commtest.Collectives(ctx, g, s, c); err != nil {
						return err
					}
				}
				return nil
			})
			if made := m.nccl.Calls("ncclCommInitRankScalable") + m.nccl.Calls("ncclCommInitRankConfig"); (made == 0) != (c.ranks == 1 && c.engine == "auto") {
				t.Errorf("%d communicators were made", made)
			}
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// Host memory and the GPU's, in one order of calls, from the same group.
func TestBothMemories(t *testing.T) {
	m := newMachine(t, 3)
	groups := m.groups(t, comm.Options{})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		for range 20 {
			for _, c := range commtest.Cases(3, 17)[:2] {
				if err := errors.Join(commtest.Collectives(ctx, g, host, c), commtest.Collectives(ctx, g, s, c)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	wires := groups[0].Stats().Wires
	if len(wires) != 2 || wires[0].Transport != "local" || wires[0].Computed || wires[1].Transport != "gpu" || !wires[1].Computed {
		t.Errorf("%+v", wires)
	}
}

// A call on host memory does not wait for one on the GPU that was enqueued before it.
func TestHostCallsDoNotWaitForTheGPU(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{})
	m.nccl.Async(true)
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		if err := g.Barrier(host).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			m.nccl.Deaf(true)
		}
		if err := g.Barrier(host).Wait(ctx); err != nil {
			return err
		}
		w := g.Barrier(s)
		for range 10 {
			if err := g.AllReduce(host, device.Of([]int64{1}), dtype.I64, comm.Sum).Wait(ctx); err != nil {
				return err
			}
		}
		if !w.Result().End.IsZero() {
			return errors.New("a call that nobody carries out has ended")
		}
		if err := g.Barrier(host).Wait(ctx); err != nil { // all have looked
			return err
		}
		if g.Rank() == 0 {
			m.nccl.Deaf(false)
		}
		return w.Wait(ctx)
	})
}

func TestWorkAndStatsOnGPUs(t *testing.T) {
	m := newMachine(t, 4)
	groups := m.groups(t, comm.Options{MaxCTAs: 8, Engine: "nccl"})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 4000)
		w := g.AllReduce(s, x, dtype.F32, comm.Sum)
		if err := w.Wait(ctx); err != nil {
			return err
		}
		if r := w.Result(); r.Sent != 24000 || r.Received != 24000 || r.Algorithm != comm.NCCL || r.End.Before(r.Start) || r.Start.IsZero() {
			return fmt.Errorf("%+v", r)
		}
		if last := g.Recent()[0]; !last.GPU || last.State != comm.Ended || last.String() != "AllReduce(sum, f32, 4000) #1 ended" {
			return fmt.Errorf("%+v", last)
		}
		// Together, all ranks send what all receive, whatever the call.
		g.Broadcast(s, x, dtype.F32, 1)
		g.Reduce(s, x, x, dtype.F32, comm.Sum, 2)
		g.Gather(s, x, x.Slice(4000*g.Rank(), 4000*(g.Rank()+1)), dtype.F32, 3)
		g.Scatter(s, x.Slice(4000*g.Rank(), 4000*(g.Rank()+1)), x, dtype.F32, 0)
		if g.Rank() < 2 {
			g.Send(s, x, dtype.F32, g.Rank()+2)
		} else {
			g.Recv(s, x, dtype.F32, g.Rank()-2)
		}
		return g.Barrier(s).Wait(ctx)
	})
	var sent, received int64
	for _, g := range groups {
		st := g.Stats()
		w := st.Wires[len(st.Wires)-1]
		sent, received = sent+w.Sent, received+w.Received
		if st.Calls != 7 || st.Failed != 0 || st.Time <= 0 || w.Transport != "gpu" {
			t.Errorf("%+v", st)
		}
	}
	// 4 ranks: 2*3/4*4, 3 and 3 times the array, 3 quarters twice, and 2.
	if want := int64(16000*(6+3+3+2)) + 4000*6; sent != want || received != want {
		t.Errorf("%d bytes sent, %d received, want %d", sent, received, want)
	}
	const line = "comm: nccl 2.28.3: 4 ranks, NVLink (P2P/CUMEM), 24 channels, up to 8 CTAs"
	if got := "comm: " + groups[2].GPUEngine(); got != line || strings.Count(m.log.String(), line) != 1 {
		t.Errorf("the engine is %q; logged:\n%s", got, m.log)
	}
	if name, ctas := m.nccl.Config(); name != "world" || ctas != 8 {
		t.Errorf("NCCL was given the name %q and %d CTAs", name, ctas)
	}
}

func TestSubgroupsOnGPUs(t *testing.T) {
	m := newMachine(t, 4)
	groups := m.groups(t, comm.Options{})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		pair, err := g.Sub([]int{g.Rank() | 1, g.Rank() &^ 1})
		if err != nil {
			return err
		}
		alone, err := g.Sub([]int{g.Rank()})
		if err != nil {
			return err
		}
		for _, sub := range []*comm.Group{pair, alone, g} {
			if err := commtest.Collectives(ctx, sub, s, commtest.Case{Count: 5, DType: dtype.F32}); err != nil {
				return err
			}
		}
		if pair.GPUEngine() == "" || alone.GPUEngine() != "one rank: copies" {
			return fmt.Errorf("engines %q and %q", pair.GPUEngine(), alone.GPUEngine())
		}
		return errors.Join(pair.Close(), alone.Close())
	})
}

// Alloc gives the GPU's memory, zeroed, from NCCL where it has a function for that.
func TestAllocOnGPUs(t *testing.T) {
	for _, c := range []struct {
		release, failing int
		fromNCCL         bool
		logged           string
	}{{release: 22803, fromNCCL: true}, {release: 21805}, {release: 22803, failing: nccltest.CUDAError, logged: "memory of the device instead of NCCL's"}} {
		t.Run(fmt.Sprint(c.release, c.failing), func(t *testing.T) {
			m := newMachine(t, 2)
			m.nccl.Version(c.release)
			m.nccl.Fail("ncclMemAlloc", -1, c.failing, 0)
			groups := m.groups(t, comm.Options{})
			commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
				empty, err := g.Alloc(0)
				if err != nil || empty.Len() != 0 {
					return fmt.Errorf("Alloc(0) = %d bytes, %v", empty.Len(), err)
				}
				buf, err := g.Alloc(4000)
				if err != nil {
					return err
				}
				x := make([]float32, 1000)
				s.Copy(device.Of(x), buf)
				for i := range x {
					if x[i] != 0 {
						return fmt.Errorf("element %d is %v", i, x[i])
					}
				}
				return g.AllReduce(s, buf, dtype.F32, comm.Sum).Wait(ctx)
			})
			if n := m.nccl.Calls("ncclMemAlloc"); (n > 0) != (c.fromNCCL || c.failing != 0) {
				t.Errorf("ncclMemAlloc was called %d times", n)
			}
			if !strings.Contains(m.log.String(), c.logged) {
				t.Errorf("not logged: %q in\n%s", c.logged, m.log)
			}
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
			if n := m.nccl.Calls("ncclMemFree"); (n == 2) != c.fromNCCL {
				t.Errorf("ncclMemFree was called %d times", n)
			}
		})
	}
}

// Memory that one rank does not get ends the group on all, with what is known of it.
func TestAllocOutOfMemory(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{})
	errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
		n := 1 << 20
		if g.Rank() == 1 {
			n = 1 << 40
		}
		_, err := g.Alloc(n)
		return err
	})
	if e := failed[*comm.CallError](t, groups, errs); e.Rank != 1 || !strings.Contains(e.Error(), "Alloc") {
		t.Errorf("got %v", e)
	}
	if e, ok := errors.AsType[*cuda.OutOfMemoryError](errs[1]); !ok || e.Want != 1<<40 {
		t.Errorf("got %v", errs[1])
	}
}
