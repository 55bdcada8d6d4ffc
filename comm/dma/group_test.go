package dma_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	t.Helper()
	commtest.CheckLeaks(t)
	driver := cudatest.FakeOf(t, cudatest.Machine{GPUs: n})
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
	return devices
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
		{"ring", 2, []int{0, 1, 13, 4097}, "kernels for small arrays and copy engines for large ones, of 2 ranks"},
		{"ring", 3, []int{13, 300}, "kernels for small arrays and copy engines for large ones, of 3 ranks"},
		{"auto", 2, []int{1, 4097}, "copy engines for large arrays, else nccl "},
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

// Large arrays in memory from Alloc are summed where they are and go by copies, which
// says the Result; with Check too, where all ranks name the same place.
func TestWhoMakesACall(t *testing.T) {
	const n = 2
	devices := machine(t, n)
	groups := groupsOf(t, devices, "ring")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
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
			part := b.Len() / n
			return b.Slice(g.Rank()*part, (g.Rank()+1)*part)
		}
		small, middle := buf.Slice(0, 1<<10), buf.Slice(0, 1<<20)
		var errs []error
		for _, c := range []struct {
			w    *comm.Work
			want comm.Algorithm
		}{
			{g.AllReduce(s, small, dtype.F32, comm.Sum), comm.Kernels},
			{g.AllReduce(s, middle, dtype.F32, comm.Max), comm.InPlace},
			{g.ReduceScatter(s, own(middle), middle, dtype.F32, comm.Sum), comm.InPlace},
			{g.AllReduce(s, plain, dtype.F32, comm.Sum), comm.Kernels},
			{g.AllReduce(s, buf, dtype.F32, comm.Sum), comm.CopyEngines},
			{g.AllReduce(s, buf, dtype.BF16, comm.Max), comm.InPlace},
			{g.AllReduce(s, middle, dtype.I32, comm.Sum), comm.Kernels},
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
	})
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}
