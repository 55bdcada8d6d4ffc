package dma_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// machine is n fake GPUs whose kernels run, and a fake NCCL.
func machine(t *testing.T, n int) []device.Device {
	devices, _ := machineOf(t, cudatest.Machine{GPUs: n})
	return devices
}

func machineOf(t *testing.T, m cudatest.Machine) ([]device.Device, *cudatest.Driver) {
	t.Helper()
	n := m.GPUs
	commtest.CheckLeaks(t)
	driver := cudatest.FakeOf(t, m)
	nccltest.Fake(t, driver)
	dma.Emulate(t)
	devices := make([]device.Device, n)
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		devices[i] = d
	}
	t.Cleanup(func() {
		for _, d := range devices {
			if err := d.(*cuda.Device).Close(); err != nil {
				t.Error(err)
			}
		}
		if live := driver.Live(); len(live) > 0 {
			t.Errorf("left over on the GPUs: %v", live)
		}
	})
	return devices, driver
}

func groupsOf(t *testing.T, devices []device.Device, engine string) []*comm.Group {
	t.Helper()
	options := make([]comm.Options, len(devices))
	for i, d := range devices {
		options[i] = comm.Options{Device: d, Engine: engine, MaxCTAs: 4, Timeout: 2 * time.Minute}
	}
	return commtest.Groups(t, len(devices), options...)
}

// Every collective of a Group, without NCCL and beside it, and who made it.
func TestGroupsEmulated(t *testing.T) {
	for _, c := range []struct {
		engine string
		ranks  int
		counts []int
		want   string
	}{
		{"ring", 2, []int{0, 1, 13, 4097}, "kernels for sums and small arrays, copy engines for the rest, of 2 ranks"},
		{"ring", 3, []int{13, 300}, "kernels for sums and small arrays, copy engines for the rest, of 3 ranks"},
		{"auto", 2, []int{1, 4097}, "kernels for sums and small arrays, copy engines for the rest, else nccl "},
	} {
		t.Run(fmt.Sprintf("%s, %d ranks", c.engine, c.ranks), func(t *testing.T) {
			devices := machine(t, c.ranks)
			groups := groupsOf(t, devices, c.engine)
			if got := groups[0].GPUEngine(); !strings.HasPrefix(got, c.want) {
				t.Errorf("the engine is %q, want %q", got, c.want)
			}
			commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
				for _, each := range commtest.Cases(g.Size(), c.counts...) {
					if err := commtest.Collectives(t.Context(), g, s, each); err != nil {
						return err
					}
				}
				return nil
			})
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// Large arrays in memory from Alloc are summed where they are, by copies where there is no
// NVLink, and go by copies, which says the Result; with Check too, where all ranks name
// the same place.
func TestWhoMakesACall(t *testing.T) {
	for _, pcie := range []bool{false, true} {
		t.Run(fmt.Sprintf("PCIe %t", pcie), func(t *testing.T) {
			devices, _ := machineOf(t, cudatest.Machine{GPUs: 2, PCIe: pcie})
			groups := groupsOf(t, devices, "ring")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error { return whoMakes(ctx, g, s, pcie) })
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// whoMakes makes calls of all kinds, and looks at who made them.
func whoMakes(ctx context.Context, g *comm.Group, s device.Stream, pcie bool) error {
	sums, others, middling := comm.InPlace, comm.InPlace, comm.Kernels
	if pcie { // copies cost less, and a kernel's reads more
		sums, others, middling = comm.CopyEngines, comm.Kernels, comm.CopyEngines
	}
	const most = 16 << 20
	buf, err := g.Alloc(most)
	if err != nil {
		return err
	}
	plain, err := s.Device().Alloc(1 << 20)
	if err != nil {
		return err
	}
	own := func(b device.Buffer) device.Buffer {
		part := b.Len() / g.Size()
		return b.Slice(g.Rank()*part, (g.Rank()+1)*part)
	}
	small, middle := buf.Slice(0, 512<<10), buf.Slice(0, 4<<20)
	var errs []error
	for _, c := range []struct {
		w    *comm.Work
		want comm.Algorithm
	}{
		{g.AllReduce(s, small, dtype.F32, comm.Sum), comm.Kernels},
		{g.AllReduce(s, middle, dtype.F32, comm.Max), others},
		{g.AllReduce(s, middle, dtype.F32, comm.Sum), sums},
		{g.ReduceScatter(s, own(middle), middle, dtype.F32, comm.Max), comm.Kernels},
		{g.ReduceScatter(s, own(buf), buf, dtype.F32, comm.Sum), sums},
		{g.AllReduce(s, plain, dtype.F32, comm.Sum), comm.Kernels},
		{g.AllReduce(s, buf, dtype.BF16, comm.Max), others},
		{g.AllReduce(s, middle, dtype.I32, comm.Sum), comm.Kernels},
		{g.AllGather(s, middle, own(middle), dtype.F32), middling},
		{g.AllGather(s, buf, own(buf), dtype.F32), comm.CopyEngines},
		{g.Broadcast(s, buf, dtype.F32, 1), comm.CopyEngines},
	} {
		if err := c.w.Wait(ctx); err != nil {
			return err
		}
		if got := c.w.Result().Algorithm; got != c.want {
			errs = append(errs, fmt.Errorf("%s was made by %s, want %s", c.w, got, c.want))
		}
	}
	return errors.Join(errs...)
}

// Joining measures the ways that calls have, unless an earlier job has; all ranks choose by
// the same figures, and calls tell what was expected of them. A part of the group goes by them too.
func TestWaysAreMeasured(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	devices, driver := machineOf(t, cudatest.Machine{GPUs: 2})
	var launched []int
	var figures []string
	for range 2 {
		before := driver.Calls("cuLaunchKernel")
		groups := commtest.Groups(t, 2, comm.Options{Device: devices[0], Engine: "ring", MaxCTAs: 4, Tune: "auto"},
			comm.Options{Device: devices[1], Engine: "ring", MaxCTAs: 4, Tune: "auto"})
		launched = append(launched, driver.Calls("cuLaunchKernel")-before)
		commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
			part, err := g.Sub([]int{0, 1})
			if err != nil {
				return err
			}
			x, err := s.Device().Alloc(8 << 10)
			if err != nil {
				return err
			}
			for _, g := range []*comm.Group{g, part} {
				w := g.AllReduce(s, x, dtype.F32, comm.Sum)
				if err := w.Wait(t.Context()); err != nil {
					return err
				}
				// A small call takes a few microseconds by the typical figures, and far longer here.
				if r := w.Result(); r.Predicted < 20*time.Microsecond {
					return fmt.Errorf("%s by %s was expected to take %s", w, r.Algorithm, r.Predicted)
				}
			}
			if string(g.Tuning()) != string(part.Tuning()) {
				return errors.New("a part of the group goes by other figures")
			}
			return part.Close()
		})
		for _, g := range groups {
			figures = append(figures, string(g.Tuning()))
		}
		if err := commtest.Close(groups); err != nil {
			t.Error(err)
		}
	}
	if len(figures[0]) < 100 || slices.ContainsFunc(figures, func(s string) bool { return s != figures[0] }) {
		t.Errorf("the ranks' figures of two jobs: %q", figures)
	}
	if launched[0] < launched[1]+200 {
		t.Errorf("%v kernels were launched by two jobs that joined", launched)
	}
}

// Kernels tell how far a call is. Neither it nor what comes before and behind it on the
// stream needs an event, for each of which the GPU needs time.
func TestKernelsNeedNoEvents(t *testing.T) {
	const calls = 50
	devices, driver := machineOf(t, cudatest.Machine{GPUs: 2})
	groups := groupsOf(t, devices, "ring")
	before := driver.Calls("cuEventRecord")
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		x, err := s.Device().Alloc(1 << 10)
		if err != nil {
			return err
		}
		var last *comm.Work
		for range calls {
			s.Copy(x.Slice(0, 512), x.Slice(512, 1024))
			last = g.AllReduce(s, x, dtype.F32, comm.Sum)
		}
		if err := last.Wait(t.Context()); err != nil {
			return err
		}
		if r := last.Result(); !r.End.After(r.Start) {
			return fmt.Errorf("a call from %s to %s", r.Start, r.End)
		}
		return nil
	})
	const some = 20 // of the streams themselves
	if n := driver.Calls("cuEventRecord") - before; n > some {
		t.Errorf("%d calls of 2 ranks recorded %d events", calls, n)
	}
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

// Calls of kernels on two streams come one behind the other, also behind and before those of
// copies, which have events.
func TestKernelsOnTwoStreams(t *testing.T) {
	devices := machine(t, 2)
	groups := groupsOf(t, devices, "ring")
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		other, err := s.Device().NewStream("other")
		if err != nil {
			return err
		}
		const n = 16 << 20 // as much as goes by copies
		big, err := g.Alloc(n)
		if err != nil {
			return err
		}
		small, err := s.Device().Alloc(1 << 10)
		if err != nil {
			return err
		}
		var last *comm.Work
		for range 3 {
			for _, on := range []device.Stream{s, other} {
				g.AllReduce(on, small, dtype.F32, comm.Sum)
				g.Broadcast(on, big, dtype.U8, 0)
				last = g.AllReduce(on, small, dtype.F32, comm.Sum)
			}
		}
		return errors.Join(last.Wait(t.Context()), other.Close())
	})
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

// A GPU's error, of which kernels that have died say nothing, ends the group.
func TestErrorsBehindKernels(t *testing.T) {
	devices, driver := machineOf(t, cudatest.Machine{GPUs: 2})
	groups := groupsOf(t, devices, "ring")
	goOn := dma.Stall(t)
	driver.Fail("cuStreamQuery", 700)
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() { // ends with the group
			d := devices[g.Rank()]
			s, err := d.NewStream("s")
			if err != nil {
				t.Error(err)
				return
			}
			x, err := d.Alloc(1 << 10)
			if err != nil {
				t.Error(err)
				return
			}
			w := g.AllReduce(s, x, dtype.F32, comm.Sum)
			<-g.Done()
			for s.(*cuda.Stream).Err() == nil && t.Context().Err() == nil { // before the group ends its calls it fails their streams
				runtime.Gosched()
			}
			goOn() // else the group waits for them to be gone
			err = w.Wait(t.Context())
			if broken := new(comm.StreamError); !errors.As(err, &broken) || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
			s.Close() // whose error is that
			if err := d.Free(x); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	commtest.Close(groups) // whose errors are that too
}

// A call of which nothing is said ends when its stream has nothing to do any more.
func TestKernelsThatSayNothing(t *testing.T) {
	devices := machine(t, 2)
	groups := groupsOf(t, devices, "ring")
	dma.Mute(t)
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		x, err := s.Device().Alloc(1 << 10)
		if err != nil {
			return err
		}
		return g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(t.Context())
	})
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}
