package comm_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// needGPUs skips the test where there are fewer than n real GPUs, or a library is missing.
func needGPUs(t testing.TB, n int, libraries ...func() error) {
	t.Helper()
	have, err := cuda.Count()
	if err == nil && have < n {
		err = fmt.Errorf("this machine has %d", have)
	}
	for _, load := range libraries {
		if err == nil {
			err = load()
		}
	}
	if err == nil {
		return
	}
	feature := "gpu"
	if n > 1 {
		feature = fmt.Sprintf("gpu:%d", n)
	}
	testenv.Skip(t, feature, err.Error())
}

// openGPUs opens n real GPUs, which the test's end closes.
func openGPUs(t testing.TB, n int) []device.Device {
	t.Helper()
	devices := make([]device.Device, n)
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Log("closing the GPU: ", err) // an error of the group is the test's affair
			}
		})
		devices[i] = d
	}
	return devices
}

// optionsOf are o for a rank on each of the GPUs, which log what they do.
func optionsOf(devices []device.Device, o comm.Options) []comm.Options {
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	options := make([]comm.Options, len(devices))
	for i, d := range devices {
		options[i] = o
		options[i].Device = d
	}
	return options
}

// realGPUs opens n real GPUs and makes a group of them, over real NCCL.
func realGPUs(t testing.TB, n int, o comm.Options) ([]*comm.Group, []device.Device) {
	t.Helper()
	needGPUs(t, n, func() error { _, err := nccl.Load(); return err })
	if o.Engine == "" {
		o.Engine = "nccl"
	}
	devices := openGPUs(t, n)
	groups := commtest.Groups(t, n, optionsOf(devices, o)...)
	t.Log(groups[0].GPUEngine())
	return groups, devices
}

// closeSoon closes a group whose calls have been ended, which takes no time.
func closeSoon(t *testing.T, groups []*comm.Group) {
	t.Helper()
	start := time.Now()
	commtest.Close(groups)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Close took %s", took)
	}
}

// Every collective, type, operation and aliasing, with closed forms, exactly.
func TestNCCLCollectives(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			groups, devices := realGPUs(t, n, comm.Options{MaxCTAs: 16})
			wholeMatrix(t, groups, devices, 0, 1, 13, 4097, 1<<20+3)
			t.Logf("%+v", groups[0].Stats())
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// Large arrays in memory from Alloc are summed where they are and gathered by the copy
// engines, which says the Result.
func TestCopyEngines(t *testing.T) {
	const n, count = 2, 3<<20 + 128 // elements of each rank's part
	groups, devices := realGPUs(t, n, comm.Options{Engine: "auto"})
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		buf, err := g.Alloc(4 * n * count)
		if err != nil {
			return err
		}
		const part = 4 * count
		own := buf.Slice(g.Rank()*part, (g.Rank()+1)*part)
		host := device.Of(make([]float32, n*count))
		give := func() {
			for i := range device.View[float32](host) {
				device.View[float32](host)[i] = float32(i%1000 + g.Rank())
			}
			s.Copy(buf, host)
		}
		is := func(what string, w *comm.Work, algorithm comm.Algorithm, from, to int) error {
			s.Copy(host.Slice(4*from, 4*to), buf.Slice(4*from, 4*to))
			if err := s.Synchronize(ctx); err != nil {
				return err
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if got := w.Result().Algorithm; got != algorithm {
				return fmt.Errorf("%s was made by %s, want %s", what, got, algorithm)
			}
			for i, v := range device.View[float32](host)[from:to] {
				if want := float32(2*((from+i)%1000) + 1); v != want {
					return fmt.Errorf("%s: element %d is %v, want %v", what, from+i, v, want)
				}
			}
			return nil
		}
		give()
		if err := is("the sum", g.AllReduce(s, buf, dtype.F32, comm.Sum), comm.InPlace, 0, n*count); err != nil {
			return err
		}
		give()
		from := g.Rank() * count
		if err := is("the part", g.ReduceScatter(s, own, buf, dtype.F32, comm.Sum), comm.InPlace, from, from+count); err != nil {
			return err
		}
		if err := is("the whole", g.AllGather(s, buf, own, dtype.F32), comm.CopyEngines, 0, n*count); err != nil {
			return err
		}
		give()
		const few = 1 << 10
		w := g.AllReduce(s, buf.Slice(0, 4*few), dtype.F32, comm.Sum)
		if err := w.Wait(ctx); err != nil {
			return err
		}
		return is("the small sum", w, w.Result().Algorithm, 0, few)
	})
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

// Two runs over the same numbers give the same bits, on all ranks.
func TestNCCLGivesTheSameBits(t *testing.T) {
	const n, count = 2, 1<<20 + 7
	var before []byte
	for range 2 {
		groups, devices := realGPUs(t, n, comm.Options{})
		results := make([][]byte, n)
		commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
			buf, err := g.Alloc(2 * count)
			if err != nil {
				return err
			}
			s.Copy(buf, device.Host(random(uint64(g.Rank()), dtype.BF16, count)))
			g.AllReduce(s, buf, dtype.BF16, comm.Sum)
			results[g.Rank()] = make([]byte, 2*count)
			s.Copy(device.Host(results[g.Rank()]), buf)
			return s.Synchronize(ctx)
		})
		if err := commtest.Close(groups); err != nil {
			t.Fatal(err)
		}
		if string(results[0]) != string(results[1]) {
			t.Fatal("the ranks hold different bits")
		}
		if before != nil && string(before) != string(results[0]) {
			t.Fatal("the second run gave other bits")
		}
		before = results[0]
	}
}

// Times of a Work lie on the host's clock, in order, and are those of the GPU.
func TestNCCLWorkHasTimes(t *testing.T) {
	groups, devices := realGPUs(t, 2, comm.Options{})
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		buf, err := g.Alloc(64 << 20)
		if err != nil {
			return err
		}
		var works []*comm.Work
		begin := time.Now()
		for range 20 {
			works = append(works, g.AllReduce(s, buf, dtype.F32, comm.Sum))
		}
		enqueued := time.Since(begin)
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		took := time.Since(begin)
		var sum time.Duration
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
			r := w.Result()
			d := r.End.Sub(r.Start)
			if d < 20*time.Microsecond || r.Start.Before(begin.Add(-5*time.Millisecond)) {
				return fmt.Errorf("%s: started %s after the first was enqueued and took %s", w, r.Start.Sub(begin), d)
			}
			sum += d
		}
		t.Logf("rank %d: 20 AllReduces of 64 MiB: enqueued in %s, done after %s, of which %s in calls", g.Rank(), enqueued, took, sum)
		if sum > took+20*time.Millisecond {
			return fmt.Errorf("the calls took %s together, and all of it %s", sum, took)
		}
		return nil
	})
}

// A call that waits on the GPU for a rank that does not come ends with the timeout,
// whose error names that rank, and with Abort.
func TestNCCLCallsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		within  time.Duration
		lags    func(g *comm.Group) error
	}{
		"timeout": {2 * time.Second, 15 * time.Second, func(g *comm.Group) error { <-g.Done(); return g.Err() }},
		"abort":   {time.Minute, 10 * time.Second, func(g *comm.Group) error { g.Abort(errors.New("the loss is NaN")); return g.Err() }},
	} {
		t.Run(name, func(t *testing.T) {
			groups, devices := realGPUs(t, 2, comm.Options{Timeout: c.timeout})
			start := time.Now()
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
					return c.lags(g)
				}
				w := g.AllReduce(s, x, dtype.F32, comm.Sum)
				after := s.Record()
				if err := after.Sync(ctx); err == nil {
					return errors.New("the place behind the call was reached")
				}
				return w.Wait(ctx)
			})
			if took := time.Since(start); took > c.within {
				t.Errorf("it took %s", took)
			}
			t.Log(errs[0])
			if name == "timeout" {
				if e := failed[*comm.StuckError](t, groups, errs); len(e.Behind) != 1 || e.Behind[0].Rank != 1 {
					t.Errorf("got %v", e)
				}
			} else {
				failed[*comm.AbortError](t, groups, errs)
			}
			closeSoon(t, groups)
		})
	}
}

// Calls that differ are named: with Check before they are made, else when one of them
// is late.
func TestNCCLMismatch(t *testing.T) {
	for _, check := range []bool{true, false} {
		t.Run(fmt.Sprint(check), func(t *testing.T) {
			groups, devices := realGPUs(t, 2, comm.Options{Check: check, Timeout: 3 * time.Second})
			errs := commtest.EachOn(groups, devices, func(g *comm.Group, s device.Stream) error {
				x := f32(s, 1<<20)
				host := device.NewCPUStream("host", nil)
				defer host.Close()
				if err := g.Barrier(host).Wait(ctx); err != nil {
					return err
				}
				// Counts that differ this much cannot be met by accident.
				if err := g.AllReduce(s, x.Slice(0, x.Len()>>(8*g.Rank())), dtype.F32, comm.Sum).Wait(ctx); err != nil {
					return err
				}
				select { // NCCL may have met this rank's part
				case <-g.Done():
					return g.Err()
				case <-time.After(20 * time.Second):
					return errors.New("nobody noticed")
				}
			})
			t.Log(errs[0])
			failed[*transport.MismatchError](t, groups, errs)
		})
	}
}

// BenchmarkNCCL is AllReduce of f32, in place, on all GPUs up to eight, one goroutine
// each, as nccl-tests reports it: algbw is bytes by time, busbw that times 2(n-1)/n.
// GPU time is between events around all calls of rank 0; host time is what the
// caller's goroutine spends in a call.
func BenchmarkNCCL(b *testing.B) {
	have, err := cuda.Count()
	if err != nil {
		testenv.Skip(b, "gpu", err.Error())
	}
	n := min(have, 8)
	groups, devices := realGPUs(b, n, comm.Options{})
	most := 1 << 30
	if v := os.Getenv("GORUN_BENCH_MAX"); v != "" {
		if _, err := fmt.Sscan(v, &most); err != nil {
			b.Fatalf("GORUN_BENCH_MAX=%q: %v", v, err)
		}
	}
	bufs := make([]device.Buffer, n)
	commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) (err error) {
		bufs[g.Rank()], err = g.Alloc(most)
		return err
	})
	lines := map[int]string{} // by size: the last run is the longest
	for size := 1 << 10; size <= most; size *= 4 {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var gpu, host time.Duration
			commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) error {
				buf := bufs[g.Rank()].Slice(0, size)
				for range 5 {
					g.AllReduce(s, buf, dtype.F32, comm.Sum)
				}
				if err := s.Synchronize(ctx); err != nil {
					return err
				}
				first, begin := s.Record(), time.Now()
				var last *comm.Work
				for range b.N {
					last = g.AllReduce(s, buf, dtype.F32, comm.Sum)
				}
				enqueued, end := time.Since(begin), s.Record()
				if err := s.Synchronize(ctx); err != nil {
					return err
				}
				if err := last.Wait(ctx); err != nil || g.Rank() != 0 {
					return err
				}
				host = enqueued
				gpu, err = end.Since(first)
				return err
			})
			per := gpu.Seconds() / float64(b.N)
			alg := float64(size) / per / 1e9
			bus := alg * 2 * float64(n-1) / float64(n)
			if math.IsInf(alg, 0) || math.IsNaN(alg) {
				b.Fatalf("%d calls took %s", b.N, gpu)
			}
			b.ReportMetric(per*1e6, "gpu-µs/op")
			b.ReportMetric(host.Seconds()/float64(b.N)*1e6, "host-µs/op")
			b.ReportMetric(alg, "algbw-GB/s")
			b.ReportMetric(bus, "busbw-GB/s")
			b.ReportMetric(0, "ns/op")
			lines[size] = fmt.Sprintf("%12d %12d %10.1f %10.1f %10.2f %10.2f   (%d calls)", size, size/4, per*1e6, host.Seconds()/float64(b.N)*1e6, alg, bus, b.N)
		})
	}
	table := fmt.Sprintf("%s\n%12s %12s %10s %10s %10s %10s", groups[0].GPUEngine(), "bytes", "count", "gpu µs", "host µs", "algbw", "busbw")
	for _, size := range slices.Sorted(maps.Keys(lines)) {
		table += "\n" + lines[size]
	}
	b.Log("\n" + table)
}

// wholeMatrix runs every collective, type, operation and aliasing on real GPUs.
func wholeMatrix(t *testing.T, groups []*comm.Group, devices []device.Device, counts ...int) {
	t.Helper()
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		if err := commtest.Reserve(s, 256<<20); err != nil {
			return err
		}
		host := device.NewCPUStream("host", nil)
		defer host.Close()
		if err := g.Barrier(host).Wait(ctx); err != nil {
			return err
		}
		for _, c := range commtest.Cases(g.Size(), counts...) {
			if err := commtest.Collectives(ctx, g, s, c); err != nil {
				return err
			}
		}
		return nil
	})
}
