package comm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

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
		}, "engine ring moves GPU memory within a host, between GPUs that reach each other's: "},
		"engine ring, Alloc": {m.options(comm.Options{Engine: "ring"})[:2], func(g *comm.Group, s device.Stream) error {
			_, err := g.Alloc(4)
			return err
		}, "engine ring moves GPU memory within a host, between GPUs that reach each other's: "},
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
		errs := commtest.EachOn(groups, m.devices, func(g *comm.Group, s device.Stream) error {
			host := device.NewCPUStream("host", nil)
			defer host.Close()
			if err := g.Barrier(host).Wait(ctx); err != nil {
				return fmt.Errorf("host memory: %w", err)
			}
			return g.Barrier(s).Wait(ctx)
		})
		if e := failed[*comm.CallError](t, groups, errs); !strings.Contains(e.Error(), "2 ranks on GPUs need NCCL: ") || !strings.Contains(e.Error(), want) {
			t.Errorf("engine auto: got %v\nwant ... %s", e, want)
		}
		if !strings.Contains(groups[0].GPUEngine(), "none: 2 ranks on GPUs need NCCL: ") || !strings.Contains(m.log.String(), "calls on GPU memory will fail") {
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
			_, err := comm.Local(3, m.options(comm.Options{Timeout: 2 * time.Minute})...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant ... %s", err, c.want)
			}
			if took := time.Since(start); took > time.Minute {
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
	all := m.options(comm.Options{})
	store := commtest.Groups(t, 1)[0].Store()
	join := func(within time.Duration) error {
		short, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		errs := make(chan error, 2)
		for r := range 2 {
			go func() {
				o := all[r]
				o.Rank, o.Size, o.Store, o.Name, o.Transport = r, 2, store, fmt.Sprint("late by ", within), "tcp"
				_, err := comm.New(short, o)
				if err != nil && strings.Contains(err.Error(), "waiting for all ranks to start NCCL: context deadline exceeded") {
					err = nil
				} else {
					err = fmt.Errorf("rank %d: got %w", r, err)
				}
				errs <- err
			}()
		}
		return errors.Join(<-errs, <-errs)
	}
	// How long the ranks take until there is nothing but NCCL to wait for is up to the
	// machine.
	for within := 300 * time.Millisecond; ; within *= 2 {
		err := join(within)
		if err == nil {
			break
		}
		if within > 10*time.Second {
			t.Fatal(err)
		}
	}
}
