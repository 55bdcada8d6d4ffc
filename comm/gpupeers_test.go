package comm_test

import (
	"errors"
	"fmt"
	"os"
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

// Every collective, type, operation and aliasing, without NCCL and beside it.
func TestPeersCollectives(t *testing.T) {
	for _, engine := range []string{"ring", "auto"} {
		t.Run(engine, func(t *testing.T) {
			const n = 2
			groups, devices := realGPUs(t, n, comm.Options{Engine: engine})
			wholeMatrix(t, groups, devices, 0, 1, 13, 4097, 1<<17, 1<<20+3)
			t.Logf("%+v", groups[0].Stats())
			if err := commtest.Close(groups); err != nil {
				t.Error(err)
			}
		})
	}
}

// A call by kernels or copies that waits for a rank that does not come ends with the
// timeout, whose error names that rank.
func TestPeersCallsEnd(t *testing.T) {
	for name, count := range map[string]int{"kernels": 1 << 10, "copies": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			groups, devices := realGPUs(t, 2, comm.Options{Engine: "ring", Timeout: 3 * time.Second})
			errs := commtest.EachOn(groups, devices, func(g *comm.Group, s device.Stream) error {
				x, err := g.Alloc(4 * count)
				if err != nil {
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
		})
	}
}

// A process each, whose GPUs' memory is mapped by handles, as in a job.
func TestPeersBetweenProcesses(t *testing.T) {
	needGPUs(t, 2)
	t.Setenv("COMM_TEST_ENGINE", "ring")
	for r, out := range world(t, 2, "gpu", "auto") {
		t.Logf("rank %d: %s", r, out)
		if !strings.Contains(out, "sum 4 by kernels for sums and small arrays, copy engines for the rest, of 2 ranks") || !strings.HasSuffix(out, "[<nil>]") {
			t.Errorf("rank %d says %q", r, out)
		}
	}
	named(t, world(t, 2, "gpu dies", "auto"))
}

// BenchmarkPeers prints the time of a call by the project's engine, NCCL's for the same,
// and the ratio of the two: f32 sums, in place, in memory from Alloc, from 1 KiB to
// GORUN_BENCH_MAX bytes (1 GiB) of the full array, by events around calls one behind the
// other. The engines take turns; the figure is the median of five. docs/benchmarks/gpu-peers.md
// has what was expected.
func BenchmarkPeers(b *testing.B) {
	const n, turns = 2, 5
	ours, devices := realGPUs(b, n, comm.Options{Engine: "ring"})
	theirs := peersOf(b, devices, comm.Options{Engine: "nccl"})
	most := 1 << 30
	if v := os.Getenv("GORUN_BENCH_MAX"); v != "" {
		if _, err := fmt.Sscan(v, &most); err != nil {
			b.Fatalf("GORUN_BENCH_MAX=%q: %v", v, err)
		}
	}
	engines := [][]*comm.Group{ours, theirs}
	var bufs [2][n]device.Buffer
	for e, groups := range engines {
		commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) (err error) {
			bufs[e][g.Rank()], err = g.Alloc(most)
			return err
		})
	}
	table := fmt.Sprintf("%s\n%s\n%-14s %12s %-13s %10s %10s %6s %10s %10s", ours[0].GPUEngine(), theirs[0].GPUEngine(),
		"call", "bytes", "by", "ours µs", "nccl µs", "ratio", "ours GB/s", "nccl GB/s")
	for _, kind := range []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather} {
		for _, size := range []int{1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20, 256 << 20, 1 << 30} {
			if size > most {
				break
			}
			var by comm.Algorithm
			var took [2][]time.Duration
			for range turns {
				for e, groups := range engines {
					commtest.RunOn(b, groups, devices, func(g *comm.Group, s device.Stream) error {
						per, algorithm, err := timed(g, s, kind, bufs[e][g.Rank()].Slice(0, size))
						if g.Rank() == 0 {
							took[e] = append(took[e], per)
							if e == 0 {
								by = algorithm
							}
						}
						return err
					})
				}
			}
			share := float64(n-1) / float64(n)
			if kind == transport.AllReduce {
				share *= 2
			}
			median := func(e int) float64 { slices.Sort(took[e]); return took[e][turns/2].Seconds() }
			a, z := median(0), median(1)
			table += fmt.Sprintf("\n%-14s %12d %-13s %10.2f %10.2f %6.2f %10.1f %10.1f", kind, size, by, a*1e6, z*1e6, a/z,
				float64(size)*share/a/1e9, float64(size)*share/z/1e9)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.Log("\n" + table)
}

// peersOf makes a group of GPUs that are open.
func peersOf(t testing.TB, devices []device.Device, o comm.Options) []*comm.Group {
	return commtest.Groups(t, len(devices), optionsOf(devices, o)...)
}

// timed is the GPU's time of a call, and how it was made.
func timed(g *comm.Group, s device.Stream, kind transport.Kind, b device.Buffer) (time.Duration, comm.Algorithm, error) {
	part := b.Len() / g.Size()
	own := b.Slice(g.Rank()*part, (g.Rank()+1)*part)
	call := func() *comm.Work {
		switch kind {
		case transport.ReduceScatter:
			return g.ReduceScatter(s, own, b, dtype.F32, comm.Sum)
		case transport.AllGather:
			return g.AllGather(s, b, own, dtype.F32)
		}
		return g.AllReduce(s, b, dtype.F32, comm.Sum)
	}
	for range 5 {
		call()
	}
	if err := s.Synchronize(ctx); err != nil {
		return 0, "", err
	}
	rounds := min(max(1<<28/b.Len(), 8), 500)
	begin := s.Record()
	var last *comm.Work
	for range rounds {
		last = call()
	}
	end := s.Record()
	if err := end.Sync(ctx); err != nil {
		return 0, "", err
	}
	if err := last.Wait(ctx); err != nil {
		return 0, "", err
	}
	took, err := end.Since(begin)
	return took / time.Duration(rounds), last.Result().Algorithm, err
}
