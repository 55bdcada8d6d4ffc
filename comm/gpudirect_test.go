package comm_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/rdmatest"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// peermem is a /sys that shows the module by which cards reach memory of GPUs.
func peermem(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	file := filepath.Join(sys, "module/nvidia_peermem/version")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("1.0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return sys
}

// cards is what a test has of network cards: devices of its own, or nil for the system's.
func (m *machine) cards(t *testing.T, hosts string, api *verbs.API, o comm.Options) []*comm.Group {
	t.Helper()
	groups, err := m.tryCards(t, hosts, api, o)
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

func (m *machine) tryCards(t *testing.T, hosts string, api *verbs.API, o comm.Options) ([]*comm.Group, error) {
	t.Helper()
	comm.EmulateStreams(t, m.driver)
	o.Engine = "ring"
	if o.Transport == "" {
		o.Transport = "rdma"
	}
	o.OverCards(api, peermem(t))
	all := m.options(o)
	for i := range all {
		all[i].Logger = slog.New(slog.NewTextHandler(m.log, nil))
	}
	groups, err := comm.LocalOn(strings.Fields(hosts), all...)
	t.Cleanup(func() { commtest.Close(groups) })
	return groups, err
}

// directOn makes groups of fake GPUs on hosts that cards of a fabric join.
func directOn(t *testing.T, hosts string, o comm.Options) (*machine, *rdmatest.Fabric, []*comm.Group) {
	t.Helper()
	m := fakeGPUs(t, len(strings.Fields(hosts)))
	f := rdmatest.New(t)
	return m, f, m.cards(t, hosts, f.API(), o)
}

// tryDirect runs the matrix of all collectives, types, operations and aliasing.
func tryDirect(t *testing.T, m *machine, groups []*comm.Group, counts ...int) {
	t.Helper()
	n := len(groups)
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		for _, c := range commtest.Cases(n, counts...) {
			if err := commtest.Collectives(ctx, g, s, c); err != nil {
				return err
			}
		}
		return nil
	})
	want := fmt.Sprintf(", by nvidia-peermem, %d ranks, for all-reduce, ", n)
	if got := groups[0].GPUEngine(); !strings.HasPrefix(got, "gpudirect over rdma (") || !strings.Contains(got, want) || !strings.Contains(got, "the rest staged in pinned memory of the host, over ") ||
		strings.Count(m.log.String(), got+"\" group=world rank=0") != 1 {
		t.Errorf("the engine is %q, want %q in it; logged:\n%s", got, want, m.log)
	}
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

func TestGPUDirectCollectives(t *testing.T) {
	for _, c := range []struct{ hosts, transport string }{{"a b", "rdma"}, {"a b c", "rdma"}, {"a a b", "auto"}} {
		for slot, counts := range map[int][]int{64 << 10: {0, 13}, 256: {1, 333}} {
			t.Run(fmt.Sprint(strings.ReplaceAll(c.hosts, " ", ""), slot), func(t *testing.T) {
				comm.StageBy(t, 4096)
				comm.DirectBy(t, slot, 64)
				m, _, groups := directOn(t, c.hosts, comm.Options{Transport: c.transport})
				tryDirect(t, m, groups, counts...)
			})
		}
	}
}

// Who makes which call, what the results and the recorder say of it, and that data passes
// the cards alone: what goes between GPUs' memory by them is what the ring has to send.
func TestGPUDirectSaysWhoMadeACall(t *testing.T) {
	m, _, groups := directOn(t, "a b", comm.Options{Check: true})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x, y := f32(s, 1000), f32(s, 2000)
		for _, c := range []struct {
			w    *comm.Work
			want comm.Algorithm
		}{
			{g.AllReduce(s, x, dtype.F32, comm.Prod), comm.GPUDirect},
			{g.AllGather(s, y, x, dtype.F32), comm.GPUDirect},
			{g.Reduce(s, x, x, dtype.F32, comm.Sum, 0), comm.Staged},
			{g.Barrier(s), comm.Staged},
			{g.AllToAllV(s, y, f32(s, 2000), []int{1000, 1000}, []int{1000, 1000}, dtype.F32), comm.Staged},
			{g.AllReduce(s, x, dtype.F32, comm.Sum), comm.GPUDirect},
		} {
			if err := c.w.Wait(ctx); err != nil {
				return err
			}
			if r := c.w.Result(); r.Algorithm != c.want {
				return fmt.Errorf("%s by %s, want %s", c.w, r.Algorithm, c.want)
			}
		}
		return nil
	})
	if last := groups[0].Recent()[0]; !last.GPU || last.Algorithm != comm.GPUDirect || last.State != comm.Ended {
		t.Errorf("%+v", last)
	}
}

// A rank makes all its calls, on two streams in turns, before another makes the first.
func TestGPUDirectRow(t *testing.T) {
	comm.DirectBy(t, 256, 64)
	m, _, groups := directOn(t, "a b c", comm.Options{})
	inARow(t, m, groups, func(*comm.Work) error { return nil })
}

// How what the cards write becomes visible to the GPU, by what the driver says of it.
func TestGPUDirectFlushes(t *testing.T) {
	for name, c := range map[string]struct {
		ordering int
		byDriver bool
		want     string
	}{
		"Hopper":                    {100, true, "none, the GPU sees at once"},
		"Ampere":                    {0, true, "by the driver (cuFlushGPUDirectRDMAWrites)"},
		"Ampere on an older driver": {0, false, "by a read of the card's over a queue pair to itself"},
	} {
		t.Run(name, func(t *testing.T) {
			m, f := fakeGPUs(t, 2), rdmatest.New(t)
			m.driver.DirectWrites(c.ordering, c.byDriver)
			reads := 0
			f.Fate = func(s *verbs.Send) rdmatest.Fate {
				if s.Op == verbs.Read {
					reads++
				}
				return rdmatest.Fate{}
			}
			groups := m.cards(t, "a b", f.API(), comm.Options{})
			commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
				return commtest.Collectives(ctx, g, s, commtest.Case{Count: 1000, DType: dtype.F32})
			})
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
			flushes := m.driver.Calls("cuFlushGPUDirectRDMAWrites")
			byDriver, byCard := strings.Contains(c.want, "driver"), strings.Contains(c.want, "card's")
			if (flushes > 2) != byDriver || (reads > 2) != byCard || !strings.Contains(m.log.String(), c.want) { // 2: as they join
				t.Errorf("%d flushes, %d reads; logged:\n%s", flushes, reads, m.log)
			}
		})
	}
}

// Where a rank's card does not reach its GPU's memory, all go through the hosts, and say
// which rank and why. Nothing is left of what the others had for it.
func TestGPUDirectThatCannotBe(t *testing.T) {
	level := func(text string, apart topology.Path) func(*machine, *verbs.API, *comm.Options) {
		return func(_ *machine, _ *verbs.API, o *comm.Options) {
			if err := o.WithLevel(text); err != nil {
				t.Error(err)
			}
			if apart != "" {
				o.Apart(apart)
			}
		}
	}
	for name, c := range map[string]struct {
		with func(m *machine, api *verbs.API, o *comm.Options)
		want string // why not; "" where it can be
	}{
		"registration": {func(_ *machine, api *verbs.API, _ *comm.Options) {
			register := api.Register
			var gpus atomic.Int32
			api.Register = func(pd verbs.PD, addr uintptr, n int, a verbs.Access) (verbs.Region, error) {
				if a&verbs.RemoteRead != 0 && gpus.Add(1) == 2 {
					return verbs.Region{}, errors.New("the module says no")
				}
				return register(pd, addr, n, a)
			}
		}, "nvidia-peermem: the module says no; dma-buf: "},
		"memory":  {func(m *machine, _ *verbs.API, _ *comm.Options) { m.driver.FailAfter("cuMemAlloc", 1, 2) }, "out of memory"},
		"kernels": {func(m *machine, _ *verbs.API, _ *comm.Options) { m.driver.FailAfter("cuModuleLoadDataEx", 1, 218) }, "cuModuleLoadDataEx"},
		"flush": {func(m *machine, _ *verbs.API, _ *comm.Options) {
			m.driver.DirectWrites(0, true)
			m.driver.FailAfter("cuFlushGPUDirectRDMAWrites", 1, 999)
		}, "cuFlushGPUDirectRDMAWrites"},
		"too far":          {level("", topology.PHB), "the path between the GPU and fake0:1 is PHB, farther than PXB: NCCL_NET_GDR_LEVEL=PHB allows it"},
		"too far as asked": {level("PIX", topology.PXB), "the path between the GPU and fake0:1 is PXB, and NCCL_NET_GDR_LEVEL=PIX allows PIX at most"},
		"not known":        {level("phb", ""), "is not known, which counts as SYS, and NCCL_NET_GDR_LEVEL=phb allows PHB at most"},
		"forbidden":        {level("0", topology.PIX), "NCCL_NET_GDR_LEVEL=0 forbids it"},
		"far, but allowed": {level("SYS", topology.SYS), ""},
		"near":             {level("", topology.PXB), ""},
		"any, not known":   {level("SYS", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, f := fakeGPUs(t, 2), rdmatest.New(t)
			api, o := f.API(), comm.Options{}
			c.with(m, api, &o)
			groups := m.cards(t, "a b", api, o)
			for _, call := range []string{"cuMemAlloc", "cuModuleLoadDataEx"} {
				m.driver.Fail(call, 0)
			}
			for _, g := range groups {
				if got := g.GPUEngine(); strings.HasPrefix(got, "staged in pinned memory") != (c.want != "") {
					t.Errorf("the engine is %q", got)
				}
			}
			if c.want != "" && (!strings.Contains(m.log.String(), `"no GPUDirect"="rank `) || !strings.Contains(m.log.String(), c.want)) {
				t.Errorf("%q is not among what is logged:\n%s", c.want, m.log)
			}
			commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
				return commtest.Collectives(ctx, g, s, commtest.Case{Count: 100, DType: dtype.F32})
			})
		})
	}
}

// Calls on host memory, parts of the group, memory of the group, and comparing calls.
func TestGPUDirectBesideTheRest(t *testing.T) {
	m, _, groups := directOn(t, "a b c", comm.Options{Check: true})
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
		if got := sub.GPUEngine(); !strings.HasPrefix(got, "gpudirect over rdma (") {
			return fmt.Errorf("the part's engine is %q", got)
		}
		if err := commtest.Collectives(ctx, sub, s, commtest.Case{Count: 5, DType: dtype.F32}); err != nil {
			return err
		}
		return sub.Close()
	})
}
