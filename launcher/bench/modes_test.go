package bench

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// all is how a report of every type and operation begins its rows.
func kinds(rows []Row) (out []string) {
	for _, r := range rows {
		if text := fmt.Sprintf("%s %s %d", r.Type, r.RedOp, r.Root); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

func TestEveryTypeOperationAndRootInOneReport(t *testing.T) {
	o := small("allreduce")
	o.DType, o.Op, o.JSON, o.End = "all", "all", true, o.Begin
	out, errs := runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := kinds(decode(t, out)); len(got) != 7*5 || got[0] != "f32 sum -1" || got[34] != "u8 prod -1" {
		t.Errorf("measured %v, want 7 types with 5 operations", got)
	}
	o = small("broadcast")
	o.EveryRoot, o.JSON, o.End = true, true, o.Begin
	out, errs = runRanks(t, 3, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(kinds(decode(t, out))); got != "[f32 none 0 f32 none 1 f32 none 2]" {
		t.Errorf("measured %v, want each root", got)
	}
}

// Cycles repeat the rows, and a file has what JSON prints.
func TestCyclesAndTheFile(t *testing.T) {
	o := small("allgather")
	o.Cycles, o.File = 3, t.TempDir()+"/rows.json"
	out, errs := runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.File)
	if err != nil {
		t.Fatal(err)
	}
	rows := decode(t, string(b))
	if len(rows) != 3*3*2 || strings.Contains(out, "{") {
		t.Errorf("%d rows in the file, want 3 cycles of 3 sizes in 2 forms; and in the table no objects:\n%s", len(rows), out)
	}
	for _, row := range rows {
		checkRow(t, o, 2, row)
	}
	if n := strings.Count(out, "\n  "); n != 9 {
		t.Errorf("%d lines in the table, want 9:\n%s", n, out)
	}
	o.File = t.TempDir() // a folder
	if _, errs = runRanks(t, 2, func(int) Options { return o }); errs[0] == nil || !strings.Contains(errs[0].Error(), "-J: ") {
		t.Errorf("a folder as the file: %v", errs)
	}
}

// Results are right however calls are timed, and wherever buffers lie.
func TestEveryWayOfTiming(t *testing.T) {
	for what, change := range map[string]func(*Options){
		"an iteration is 5 calls":                   func(o *Options) { o.Aggregate = 5 },
		"of the host to make a call":                func(o *Options) { o.HostTime = true },
		"99th percentile":                           func(o *Options) { o.Tail = true },
		"the mean of all ranks":                     func(o *Options) { o.Average = "mean" },
		"the fastest rank's":                        func(o *Options) { o.Average = "min" },
		"rank 0's":                                  func(o *Options) { o.Average = "rank0" },
		"3 elements off alignment":                  func(o *Options) { o.Unaligned = 3 },
		"product: 32 x 32, f32 by":                  func(o *Options) { o.Overlap = 32 },
		"buffers private, 1 elements off alignment": func(o *Options) { o.Buffers, o.Unaligned = Private, 1 },
	} {
		for _, name := range []string{"allreduce", "reducescatter"} {
			o := small(name)
			change(&o)
			out, errs := runRanks(t, 3, func(int) Options { return o })
			if err := errors.Join(errs...); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !strings.Contains(out, what) {
				t.Errorf("the report does not say %q:\n%s", what, out)
			}
		}
	}
}

func TestBuffersOffAlignment(t *testing.T) {
	honest, err := find("allreduce")
	if err != nil {
		t.Fatal(err)
	}
	replace(t, "allreduce", func(r *runner, dst, src device.Buffer) *comm.Work {
		for _, b := range []device.Buffer{dst, src} {
			if b.Addr()%64 != 12 {
				t.Errorf("a buffer lies at %#x, want 12 bytes behind an aligned address", b.Addr())
			}
		}
		return honest.call(r, dst, src)
	})
	o := small("allreduce")
	o.Unaligned = 3
	if _, errs := runRanks(t, 2, func(int) Options { return o }); errors.Join(errs...) != nil {
		t.Error(errs)
	}
}

func TestAverages(t *testing.T) {
	withRunners(t, 2, func(r *runner) {
		for _, c := range []struct {
			average string
			want    float64
		}{{"max", 40e-9}, {"mean", 30e-9}, {"min", 20e-9}, {"rank0", 20e-9}} {
			r.o.Average = c.average
			mine := int64(20 * (1 + r.group.Rank()))
			got, err := r.typical([]int64{mine, mine, mine})
			if err != nil || r.group.Rank() == 0 && got != c.want {
				t.Errorf("the %s of 20 and 40 ns is %v s, %v", c.average, got, err)
			}
		}
	})
	for share, want := range map[float64]float64{0.99: 9, 0.5: 2, 1: 9, 0.1: 1} {
		if got := percentile([]int64{9, 1, 4, 2}, share); got != want {
			t.Errorf("percentile %v of 9 1 4 2 is %v, want %v", share, got, want)
		}
	}
}

// The product's own time, beside and alone, and what one is of the other.
func TestOverlapRows(t *testing.T) {
	o := small("allgather")
	o.Overlap, o.JSON = 64, true
	out, errs := runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, row := range decode(t, out) {
		p := row.Product
		if p == nil || p.N != 64 || p.AloneUS <= 0 || p.BesideUS <= 0 || p.CallUS <= 0 || !near(1+p.Slower, p.BesideUS/p.AloneUS) {
			t.Errorf("%+v: want times, and their ratio", p)
		}
	}
	o.JSON = false
	out, errs = runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, " engine auto\n"); n != 3 {
		t.Errorf("%d rows, want 3:\n%s", n, out)
	}
}

func TestPortsAreToldOnceWithTheirRanks(t *testing.T) {
	want := "# rdma by rxa port 1, GID a: rank 0, 2\n# rdma by rxb port 1, GID b: rank 1\n"
	if got := portLines([]string{"rxa port 1, GID a", "rxb port 1, GID b", "rxa port 1, GID a"}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := portLines(nil); got != "" {
		t.Errorf("without RDMA: %q", got)
	}
}
