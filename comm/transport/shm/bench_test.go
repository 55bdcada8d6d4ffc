package shm

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// BenchmarkProcesses prints, for teams of real processes, the median time of float32
// collectives and its ratio to the time in which one rank copies as many bytes.
// Each rank rewrites its buffer before every operation, as training does, so that
// lines do not stay in one core's cache.
func BenchmarkProcesses(b *testing.B) {
	for _, size := range []int{2, 4} {
		c := processes(b, size, "bench")
		for line := c.next(b, 0); line != "fine"; line = c.next(b, 0) {
			if line == "ended" || strings.HasPrefix(line, "error") {
				b.Fatal(line)
			}
			fmt.Println(line)
		}
	}
	b.ReportMetric(0, "ns/op") // the table is the result
}

func benchmarkRank(t *Team) error {
	// A core per rank, as far as there are cores: where the scheduler puts two ranks
	// onto one core, it measures the scheduler.
	runtime.LockOSThread()
	var core unix.CPUSet
	core.Set(t.rank % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &core); err != nil {
		return err
	}
	const most = 25 << 20
	arena, err := t.Alloc(most)
	if err != nil {
		return err
	}
	own, other := make([]byte, most), make([]byte, most)
	clear(own)
	clear(other)
	seq := 0
	header := func(kind transport.Kind, count int) transport.Call {
		seq++
		c := call(kind, transport.Sum, dtype.F32, seq)
		c.Count = uint64(count / 4)
		return c
	}
	for _, n := range []int{1 << 10, 64 << 10, 1 << 20, 25 << 20} {
		part := n / t.ranks / 4 * 4
		rows := []struct {
			name string
			buf  []byte
			do   func() error
		}{
			{"copy", own[:n], func() error { copyBounded(other[:n], own[:n]); return nil }},
			{"all-reduce arena", arena[:n], func() error { return t.AllReduce(header(transport.AllReduce, n), arena[:n]) }},
			{"all-reduce private", own[:n], func() error { return t.AllReduce(header(transport.AllReduce, n), own[:n]) }},
			{"reduce-scatter arena", arena[:n], func() error {
				return t.ReduceScatter(header(transport.ReduceScatter, part), own[:part], arena[:part*t.ranks])
			}},
			{"reduce-scatter private", own[:n], func() error {
				return t.ReduceScatter(header(transport.ReduceScatter, part), other[:part], own[:part*t.ranks])
			}},
			{"all-gather arena", arena[:n], func() error {
				return t.AllGather(header(transport.AllGather, part), arena[:part*t.ranks], own[:part])
			}},
			{"all-gather private", own[:n], func() error {
				return t.AllGather(header(transport.AllGather, part), own[:part*t.ranks], other[:part])
			}},
			{"broadcast private", own[:n], func() error { return t.Broadcast(header(transport.Broadcast, n), own[:n], 0) }},
			{"all-to-all", own[:n], func() error {
				c := header(transport.AllToAll, part)
				counts := slices.Repeat([]int{part / 4}, t.ranks)
				return t.AllToAllV(c, other[:part*t.ranks], own[:part*t.ranks], counts, counts)
			}},
		}
		copied := time.Duration(0)
		for _, row := range rows {
			rounds := min(3000, max(15, 200<<20/n))
			times := make([]time.Duration, rounds)
			for i := range rounds + 3 {
				vec.Scale(dtype.F32, row.buf, 1)
				if err := t.Barrier(header(transport.Barrier, 0)); err != nil {
					return err
				}
				start := time.Now()
				if err := row.do(); err != nil {
					return fmt.Errorf("%s: %w", row.name, err)
				}
				if i >= 3 {
					times[i-3] = time.Since(start)
				}
			}
			slices.Sort(times)
			p50 := times[rounds/2]
			if row.name == "copy" {
				copied = p50
			}
			if t.rank == 0 {
				fmt.Printf("%d ranks %9d B  %-23s p50 %10v  p99 %10v  %6.2f copies\n", t.ranks, n, row.name, p50, times[rounds*99/100], float64(p50)/float64(copied))
			}
		}
	}
	return nil
}
