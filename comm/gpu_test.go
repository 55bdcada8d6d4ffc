package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/comm/transport"
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

func newMachine(t *testing.T, gpus int) *machine {
	t.Helper()
	commtest.CheckLeaks(t)
	m := &machine{driver: cudatest.FakeOf(t, cudatest.Machine{GPUs: gpus}), log: &logged{}}
	m.nccl = nccltest.Fake(t, m.driver)
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
			all[i].Timeout = 20 * time.Second
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
	if len(wires) != 2 || wires[0].Transport != "local" || wires[0].Computed || wires[1].Transport != "nccl" || !wires[1].Computed {
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
		if st.Calls != 7 || st.Failed != 0 || st.Time <= 0 || w.Transport != "nccl" {
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

// Calls whose memory the group cannot move are refused by name, on all ranks.
func TestImpossibleCallsOnGPUs(t *testing.T) {
	m := newMachine(t, 3)
	third, err := m.devices[2].NewStream("third")
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	whole := m.options(comm.Options{})[:2]
	for name, c := range map[string]struct {
		options []comm.Options
		call    func(g *comm.Group, s device.Stream) error
		want    string
	}{
		"host memory": {whole, func(g *comm.Group, s device.Stream) error {
			return g.AllReduceInto(s, device.Of(make([]float32, 4)), f32(s, 4), dtype.F32, comm.Sum).Wait(ctx)
		}, "dst lies in host memory, and the stream is one of cuda:1"},
		"GPU memory on the CPU's stream": {whole, func(g *comm.Group, s device.Stream) error {
			host := device.NewCPUStream("host", nil)
			defer host.Close()
			return g.AllReduce(host, f32(s, 4), dtype.F32, comm.Sum).Wait(ctx)
		}, "the stream is one of the CPU, and dst or src lies on another device"},
		"another GPU": {whole, func(g *comm.Group, s device.Stream) error {
			return g.AllReduce(third, f32(third, 4), dtype.F32, comm.Sum).Wait(ctx)
		}, "stream third is one of cuda:2, and this group moves memory of cuda:1 and the host"},
		"overlap": {whole, func(g *comm.Group, s device.Stream) error {
			x := f32(s, 8)
			return g.AllReduceInto(s, x.Slice(0, 16), x.Slice(4, 20), dtype.F32, comm.Sum).Wait(ctx)
		}, "overlap"},
		"no GPU": {make([]comm.Options, 2), func(g *comm.Group, s device.Stream) error {
			return g.AllReduce(s, f32(s, 4), dtype.F32, comm.Sum).Wait(ctx)
		}, "stream rank 1 is one of cuda:1, and this group moves host memory alone: give it the GPU in Options.Device"},
		"engine ring": {m.options(comm.Options{Engine: "ring"})[:2], func(g *comm.Group, s device.Stream) error {
			return g.AllReduce(s, f32(s, 4), dtype.F32, comm.Sum).Wait(ctx)
		}, "engine ring moves host memory alone; GPU memory needs NCCL"},
		"engine ring, Alloc": {m.options(comm.Options{Engine: "ring"})[:2], func(g *comm.Group, s device.Stream) error {
			_, err := g.Alloc(4)
			return err
		}, "engine ring moves host memory alone; GPU memory needs NCCL"},
	} {
		t.Run(name, func(t *testing.T) {
			groups := commtest.Groups(t, 2, c.options...)
			errs := commtest.EachOn(groups, m.devices[:2], func(g *comm.Group, s device.Stream) error {
				if g.Rank() == 1 {
					err := c.call(g, s)
					if s.(*cuda.Stream).Err() == nil && name != "GPU memory on the CPU's stream" && name != "another GPU" && !strings.HasSuffix(name, "Alloc") {
						return errors.New("the stream goes on")
					}
					return err
				}
				<-g.Done()
				return g.Err()
			})
			if e := failed[*comm.CallError](t, groups, errs); e.Rank != 1 || !strings.Contains(e.Error(), c.want) {
				t.Errorf("got %v\nwant ... %s", e, c.want)
			}
		})
	}
}

// Where NCCL cannot be had, it is said by name: at once where it was asked for, else
// with the first call that needs it. Host memory is moved all the same.
func TestNCCLThatCannotBeHad(t *testing.T) {
	try := func(t *testing.T, m *machine, o []comm.Options, want string) {
		t.Helper()
		for i := range o {
			o[i].Engine = "nccl"
		}
		if _, err := comm.Local(2, o...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("engine nccl: got %v\nwant ... %s", err, want)
		}
		for i := range o {
			o[i].Engine = "auto"
		}
		groups := commtest.Groups(t, 2, o...)
		if err := groups[0].AllReduce(device.NewCPUStream("host", nil), device.Buffer{}, dtype.F32, comm.Sum); err == nil {
			t.Error("no work")
		}
		errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
			host := device.NewCPUStream("host", nil)
			defer host.Close()
			if g.Rank() == 1 { // rank 0 has made its call above
				g.AllReduce(host, device.Buffer{}, dtype.F32, comm.Sum)
			}
			if err := g.Barrier(host).Wait(ctx); err != nil {
				return fmt.Errorf("host memory: %w", err)
			}
			return g.Barrier(s).Wait(ctx)
		})
		if e := failed[*comm.CallError](t, groups, errs); !strings.Contains(e.Error(), "GPU memory needs NCCL") || !strings.Contains(e.Error(), want) {
			t.Errorf("engine auto: got %v\nwant ... %s", e, want)
		}
		if !strings.Contains(groups[0].GPUEngine(), "none: GPU memory needs NCCL") || !strings.Contains(m.log.String(), "calls on GPU memory will fail") {
			t.Errorf("%q, logged:\n%s", groups[0].GPUEngine(), m.log)
		}
	}
	t.Run("missing", func(t *testing.T) {
		m := newMachine(t, 2)
		t.Setenv("GORUN_NCCL_LIB", "/nonexistent/libnccl.so.2")
		try(t, m, m.options(comm.Options{}), "NCCL: GORUN_NCCL_LIB names a file that does not open: /nonexistent/libnccl.so.2")
	})
	t.Run("too old", func(t *testing.T) {
		m := newMachine(t, 2)
		m.nccl.Version(21304)
		try(t, m, m.options(comm.Options{}), "is release 2.13.4")
	})
	t.Run("one GPU for two ranks", func(t *testing.T) {
		m := newMachine(t, 2)
		o := m.options(comm.Options{})
		o[1].Device = o[0].Device
		try(t, &machine{devices: []device.Device{m.devices[0], m.devices[0]}, log: m.log}, o, "ranks 0 and 1 on ")
	})
	t.Run("for host memory", func(t *testing.T) {
		if _, err := comm.Local(1, comm.Options{Engine: "nccl"}); err == nil || !strings.Contains(err.Error(), "engine nccl moves GPU memory, and Options.Device is no GPU") {
			t.Errorf("got %v", err)
		}
		for _, bad := range []comm.Options{{Engine: "gloo"}, {MaxCTAs: -1}} {
			if _, err := comm.Local(1, bad); err == nil {
				t.Errorf("%+v was accepted", bad)
			}
		}
		// A CPU as device is no GPU, and no fault.
		g := commtest.Groups(t, 1, comm.Options{Device: device.NewCPU()})[0]
		if b, err := g.Alloc(8); err != nil || !b.OnHost() || g.GPUEngine() != "" {
			t.Errorf("%v, %v, %q", b, err, g.GPUEngine())
		}
	})
	t.Run("a GPU on one rank alone", func(t *testing.T) {
		m := newMachine(t, 2)
		o := m.options(comm.Options{})
		o[1].Device = nil
		if _, err := comm.Local(2, o...); err == nil || !strings.Contains(err.Error(), "has other options") {
			t.Errorf("got %v", err)
		}
	})
}

// What goes wrong on one rank while NCCL starts ends all ranks.
func TestNCCLThatDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(m *machine)
		want    string
	}{
		"the id":         {func(m *machine) { m.nccl.Fail("ncclGetUniqueId", -1, nccltest.SystemError, 0) }, "ncclGetUniqueId: unhandled system error (result 2)"},
		"the call":       {func(m *machine) { m.nccl.Fail("ncclCommInitRankScalable", 1, nccltest.CUDAError, 0) }, "nccl 2.28.3 ("},
		"later":          {func(m *machine) { m.nccl.Fail("making", 2, nccltest.SystemError, 0) }, "unhandled system error (result 2): making was told to fail"},
		"the first call": {func(m *machine) { m.nccl.Fail("ncclAllReduce", 1, nccltest.InternalError, 0) }, "ncclAllReduce: internal error (result 3)"},
		"the first sum":  {func(m *machine) { m.nccl.Fail("carrying", 1, nccltest.RemoteError, 0) }, "ncclAllReduce: remote process exited"},
		"wrong data":     {func(m *machine) { m.nccl.Fail("summing", -1, 1, 0) }, "the GPUs exchange wrong data: element 0 of the first sum is 4, want 3"},
		"memory":         {func(m *machine) { m.driver.FailAfter("cuMemAlloc", 4, 2) }, "out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 3)
			c.prepare(m)
			start := time.Now()
			_, err := comm.Local(3, m.options(comm.Options{})...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant ... %s", err, c.want)
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
			m.driver.FailAfter("cuMemAlloc", 0, 0)
		})
	}
}

// NCCL that never starts is given up with the time that New has.
func TestNCCLThatStartsForEver(t *testing.T) {
	m := newMachine(t, 2)
	m.nccl.Deaf(true)
	o := m.options(comm.Options{})
	store := commtest.Groups(t, 1)[0].Store()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	errs := make(chan error, 2)
	for r := range 2 {
		go func() {
			o := o[r]
			o.Rank, o.Size, o.Store, o.Name, o.Transport = r, 2, store, "late", "tcp"
			_, err := comm.New(short, o)
			errs <- err
		}()
	}
	for range 2 {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "waiting for all ranks to start NCCL: context deadline exceeded") {
			t.Errorf("got %v", err)
		}
	}
}

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
		w := g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum)
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

// A rank that stays away from a call on the GPU is named, and so is one whose stream
// does not get to it.
func TestRankThatSkipsACallOnTheGPU(t *testing.T) {
	for name, c := range map[string]struct {
		async bool
		lags  func(m *machine, g *comm.Group, s device.Stream) error
		want  string
	}{
		"does not call": {true, func(m *machine, g *comm.Group, s device.Stream) error {
			return computeForEver(g)
		}, ", it last finished AllReduce(sum, f32, 100) #1, and is at "},
		"does not call, and NCCL waits in the call": {false, func(m *machine, g *comm.Group, s device.Stream) error {
			return computeForEver(g)
		}, ", it last finished AllReduce(sum, f32, 100) #1, and is at "},
		"its stream is behind": {true, func(m *machine, g *comm.Group, s device.Stream) error {
			m.driver.Hold(s.(*cuda.Stream).Handle())
			return g.AllReduce(s, f32(s, 100), dtype.F32, comm.Sum).Wait(ctx)
		}, ", it last finished AllReduce(sum, f32, 100) #1, it has enqueued AllReduce(sum, f32, 100) #2 on a stream whose work before it is not done"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 3)
			groups := m.groups(t, comm.Options{Timeout: 500 * time.Millisecond})
			m.nccl.Async(c.async)
			errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
				x := f32(s, 100)
				if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
					return err
				}
				if err := g.Barrier(device.NewCPUStream("host", nil)).Wait(ctx); err != nil {
					return err
				}
				if g.Rank() == 2 {
					m.nccl.Deaf(name == "its stream is behind")
					return c.lags(m, g, s)
				}
				return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx)
			})
			e := failed[*comm.StuckError](t, groups, errs)
			want := fmt.Sprintf("waited 500ms in AllReduce(sum, f32, 100) #3 on %s; rank 2 on %s has not entered AllReduce(sum, f32, 100) #3", e.GPU, groups[2].Host(2))
			if text := e.Error(); !strings.Contains(text, want) || !strings.Contains(text, strings.ReplaceAll(c.want, "#2", "#3")) || len(e.Behind) != 1 {
				t.Errorf("got %q\nwant ... %q ... %q", text, want, c.want)
			}
		})
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
				o := comm.Options{Check: check, Timeout: time.Minute}
				if !check {
					o.Timeout = 300 * time.Millisecond
				}
				groups := m.groups(t, o)
				m.nccl.Async(true)
				errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
					if err := g.Barrier(s).Wait(ctx); err != nil {
						return err
					}
					odd := 0
					if g.Rank() == 1 {
						odd = 1
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

// All ranks are in the call, and NCCL does not finish it: the error says how to go on.
func TestCallThatNCCLDoesNotFinish(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{Timeout: 300 * time.Millisecond})
	m.nccl.Async(true)
	m.nccl.Deaf(true)
	errs := lastOn(m, groups)
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
			errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
				x := f32(s, 100)
				if g.Rank() != 1 {
					if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
						return err
					}
					<-g.Done() // rank 1 had made its call
					return g.Err()
				}
				if before {
					s.(*cuda.Stream).Fail(broken)
				} else {
					m.driver.Hold(s.(*cuda.Stream).Handle())
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
		if e, ok := errors.AsType[*transport.PeerError](errs[r]); !ok || e.Peer != 1 || !strings.Contains(e.Error(), "closed the group") {
			t.Errorf("rank %d: got %v", r, errs[r])
		}
	}
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
