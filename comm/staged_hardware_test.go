package comm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// stagedGPUs makes a group of two real GPUs, which pretend to be on two hosts, over tcp.
func stagedGPUs(t testing.TB, o comm.Options) ([]*comm.Group, []device.Device) {
	t.Helper()
	hosts := []string{"a", "b"}
	needGPUs(t, len(hosts))
	o.Engine, o.Transport = "ring", "tcp"
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	devices := openGPUs(t, len(hosts))
	groups, err := comm.LocalOn(hosts, optionsOf(devices, o)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { commtest.Close(groups) })
	return groups, devices
}

// Every collective, type, operation and aliasing, with closed forms, exactly.
func TestStagedOnGPUs(t *testing.T) {
	groups, devices := stagedGPUs(t, comm.Options{})
	wholeMatrix(t, groups, devices, 0, 1, 13, 4097, 1<<17, 1<<20+3)
	t.Logf("%s: %+v", groups[0].GPUEngine(), groups[0].Stats())
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

// A row of calls, each of which works on the one's before, without a wait of the host:
// enqueuing takes much less than the calls.
func TestStagedRowOnGPUs(t *testing.T) {
	const count, rounds = 3 << 20, 6
	groups, devices := stagedGPUs(t, comm.Options{})
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		buf, err := g.Alloc(4 * count)
		if err != nil {
			return err
		}
		x := make([]int32, count)
		for i := range x {
			x[i] = int32(i%1000 + g.Rank())
		}
		s.Copy(buf, device.Of(x))
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		begin := time.Now()
		for range rounds {
			g.AllReduce(s, buf, dtype.I32, comm.Sum)
		}
		enqueued := time.Since(begin)
		s.Copy(device.Of(x), buf)
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		t.Logf("rank %d: %d sums enqueued in %s, done after %s", g.Rank(), rounds, enqueued, time.Since(begin))
		for i, v := range x {
			if want := int32(2*(i%1000)+1) << (rounds - 1); v != want {
				return fmt.Errorf("element %d is %d, want %d", i, v, want)
			}
		}
		return nil
	})
}

// A call that waits for a rank that does not come ends with the timeout, whose error names
// that rank, and the streams leave the GPUs.
func TestStagedCallsEndOnGPUs(t *testing.T) {
	groups, devices := stagedGPUs(t, comm.Options{Timeout: 3 * time.Second})
	errs := commtest.EachOn(groups, devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 1<<20)
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		if err := g.Barrier(host).Wait(ctx); err != nil {
			return err
		}
		if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 1 {
			<-g.Done()
			return g.Err()
		}
		w := g.AllReduce(s, x, dtype.F32, comm.Sum)
		if err := s.Record().Sync(ctx); err == nil {
			return errors.New("the place behind the call was reached")
		}
		return w.Wait(ctx)
	})
	t.Log(errs[0])
	if e := failed[*comm.StuckError](t, groups, errs); len(e.Behind) != 1 || e.Behind[0].Rank != 1 {
		t.Errorf("got %v", e)
	}
	closeSoon(t, groups)
}

// BenchmarkStaged prints what an AllReduce of f32 takes on two GPUs through the hosts'
// memory and tcp over loopback, for slots of several sizes, beside what bounds it: the same
// sum on host memory, and copies between a GPU and pinned memory. algbw is bytes by time,
// which for two ranks is busbw too.
func BenchmarkStaged(b *testing.B) {
	sizes := []int{64 << 10, 1 << 20, 25e6, 100e6}
	var table string
	for _, slot := range []int{1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20} {
		comm.StageBy(b, slot)
		groups, devices := stagedGPUs(b, comm.Options{})
		commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) error {
			buf, err := g.Alloc(sizes[len(sizes)-1])
			if err != nil {
				return err
			}
			for _, size := range sizes {
				took, err := each(s, rounds(size), func() { g.AllReduce(s, buf.Slice(0, size), dtype.F32, comm.Sum) })
				if err != nil {
					return err
				}
				if g.Rank() == 0 {
					table += line(fmt.Sprintf("staged, slots of %d", slot), size, took)
				}
			}
			return nil
		})
		if err := commtest.Close(groups); err != nil {
			b.Error(err)
		}
	}
	groups, devices := stagedGPUs(b, comm.Options{})
	commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) error {
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		memory, err := s.Device().(*cuda.Device).AllocHost(sizes[len(sizes)-1])
		if err != nil {
			return err
		}
		buf, err := g.Alloc(memory.Len())
		if err != nil {
			return err
		}
		for _, size := range sizes {
			var sums time.Duration
			for i := range 2 * rounds(size) {
				w := g.AllReduce(host, memory.Slice(0, size), dtype.F32, comm.Sum)
				if err := w.Wait(ctx); err != nil {
					return err
				}
				if r := w.Result(); i >= rounds(size) {
					sums += r.End.Sub(r.Start)
				}
			}
			from, err := each(s, rounds(size), func() { s.Copy(memory.Slice(0, size), buf.Slice(0, size)) })
			if err != nil {
				return err
			}
			to, err := each(s, rounds(size), func() { s.Copy(buf.Slice(0, size), memory.Slice(0, size)) })
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				table += line("host memory alone", size, sums/time.Duration(rounds(size))) + line("copy to pinned memory", size, from) + line("copy from pinned memory", size, to)
			}
		}
		return g.Barrier(host).Wait(ctx)
	})
	b.ReportMetric(0, "ns/op")
	b.Logf("%s\n%-28s %12s %12s %8s\n%s", groups[0].GPUEngine(), "", "bytes", "µs", "GB/s", table)
}

func rounds(size int) int { return min(max(1<<28/size, 4), 20) }

func line(what string, size int, took time.Duration) string {
	return fmt.Sprintf("%-28s %12d %12.1f %8.2f\n", what, size, took.Seconds()*1e6, float64(size)/took.Seconds()/1e9)
}

// each is the GPU's mean time of what is enqueued, n times, each awaited: the copies of many
// calls do not fit the driver's queues, and here two ranks share a process.
func each(s device.Stream, n int, enqueue func()) (mean time.Duration, err error) {
	for i := range n + 1 {
		begin := s.Record()
		enqueue()
		end := s.Record()
		if err := end.Sync(ctx); err != nil {
			return 0, err
		}
		took, err := end.Since(begin)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			mean += took / time.Duration(n)
		}
	}
	return mean, nil
}
