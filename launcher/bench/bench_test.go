package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// small are options that measure three sizes in a moment.
func small(name string) Options {
	return Options{
		Collective: name, Begin: 1 << 10, End: 16 << 10, Factor: 4, DType: "f32", Op: "sum",
		Iterations: 3, Warmup: 1, Aggregate: 1, Cycles: 1, Checks: 2, Average: "max", Device: "cpu", Engine: "auto",
		Buffers: Arena, Transport: "auto", Tune: "off", Bind: "off", Timeout: 20 * time.Second,
	}
}

// runRanks runs the benchmark on n ranks of this process and returns rank 0's report and
// every rank's error.
func runRanks(t *testing.T, n int, options func(rank int) Options) (string, []error) {
	t.Helper()
	groups, err := comm.Local(n, comm.Options{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, g := range groups {
		ranks.Go(func() {
			w := io.Writer(&out)
			if r > 0 {
				w = failingWriter{}
			}
			errs[r] = Run(context.Background(), device.NewCPU(), []Engine{{Group: g}}, options(r), w)
		})
	}
	ranks.Wait()
	for r, g := range groups {
		if err := g.Close(); err != nil && errs[r] == nil {
			t.Errorf("rank %d: close: %v", r, err)
		}
	}
	return out.String(), errs
}

// failingWriter stands for the output of ranks that must not write.
type failingWriter struct{}

func (failingWriter) Write(b []byte) (int, error) { return 0, fmt.Errorf("wrote %q", b) }

func TestEveryCollectiveIsMeasuredAndRight(t *testing.T) {
	for _, name := range Names() {
		for _, ranks := range []int{1, 2, 3} {
			for _, blocking := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", name, ranks, blocking), func(t *testing.T) {
					o := small(name)
					o.JSON, o.Blocking = true, blocking
					if name == "broadcast" {
						o.Root = ranks - 1
					}
					out, errs := runRanks(t, ranks, func(int) Options { return o })
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
					rows := decode(t, out)
					kind, _ := find(name)
					forms := 0
					for _, has := range []bool{kind.outOfPlace, kind.inPlace} {
						if has {
							forms++
						}
					}
					if len(rows) != 3*forms {
						t.Fatalf("%d rows, want 3 sizes in %d forms:\n%s", len(rows), forms, out)
					}
					for _, row := range rows {
						checkRow(t, o, ranks, row)
					}
				})
			}
		}
	}
}

func decode(t *testing.T, out string) (rows []Row) {
	t.Helper()
	for line := range strings.Lines(out) {
		var row Row
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&row); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		rows = append(rows, row)
	}
	return rows
}

// checkRow holds a row against what follows from its own time and size.
func checkRow(t *testing.T, o Options, ranks int, row Row) {
	t.Helper()
	if row.Wrong == nil || *row.Wrong != 0 || row.TimeUS <= 0 {
		t.Errorf("time %v, wrong %v: want a time and 0 wrong: %+v", row.TimeUS, row.Wrong, row)
	}
	w := float64(ranks)
	factor := map[string]float64{"allreduce": 2 * (w - 1) / w, "broadcast": 1}
	f, ok := factor[o.Collective]
	if !ok {
		f = (w - 1) / w
	}
	alg := float64(row.Size) / row.TimeUS / 1e3
	if !near(row.AlgBW, alg) || !near(row.BusBW, alg*f) {
		t.Errorf("algbw %v, busbw %v: want %v and %v: %+v", row.AlgBW, row.BusBW, alg, alg*f, row)
	}
	parts := ranks
	if o.Collective == "allreduce" || o.Collective == "broadcast" {
		parts = 1
	}
	if row.Count*parts*4 != row.Size {
		t.Errorf("count %d of 4 bytes in %d parts is not size %d", row.Count, parts, row.Size)
	}
	if row.Type != "f32" || row.Buffers != o.Buffers || row.Algo == "" || row.Ranks != ranks || row.Collective != o.Collective {
		t.Errorf("%+v does not say what was asked: %+v", row, o)
	}
	if want := map[bool]string{true: "none", false: "local"}[ranks == 1]; row.Transport != want {
		t.Errorf("transport %s, want %s", row.Transport, want)
	}
}

func near(got, want float64) bool { return got-want <= 1e-9*want && want-got <= 1e-9*want }

func TestTable(t *testing.T) {
	out, errs := runRanks(t, 2, func(int) Options { return small("allreduce") })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var rows [][]string
	for _, line := range lines {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Fields(line))
		}
	}
	if len(rows) != 3 {
		t.Fatalf("%d rows, want 3:\n%s", len(rows), out)
	}
	var bus float64
	for i, row := range rows {
		for _, column := range []int{7, 11} {
			v, err := strconv.ParseFloat(row[column], 64)
			if err != nil {
				t.Fatalf("busbw: %v", err)
			}
			bus += v
		}
		bytes := 1024 << (2 * i)
		want := []string{fmt.Sprint(bytes), fmt.Sprint(bytes / 4), "f32", "sum", "-1"}
		if len(row) != 13 || strings.Join(row[:5], " ") != strings.Join(want, " ") || row[8] != "0" || row[12] != "0" {
			t.Errorf("row %v: want %v, then time, algbw, busbw and 0, twice", row, want)
		}
	}
	var average float64
	if _, err := fmt.Sscanf(lines[len(lines)-1], "# average busbw %f GB/s", &average); err != nil || math.Abs(average-bus/6) > 0.01 {
		t.Errorf("%q, %v: the average of the rows is %.3f", lines[len(lines)-1], err, bus/6)
	}
	for _, want := range []string{"2 ranks", "transport local", "buffers arena", "algorithm ", ": rank 0-1", "#wrong"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestEveryTypeAndOperationIsExact(t *testing.T) {
	for _, dt := range dtype.All {
		for _, op := range []string{"sum", "avg", "min", "max", "prod"} {
			for _, ranks := range []int{2, 5, 11} {
				o := small("allreduce")
				o.DType, o.Op, o.Iterations, o.Checks, o.Begin, o.End = dt.String(), op, 1, 1, 4096, 4096
				out, errs := runRanks(t, ranks, func(int) Options { return o })
				if err := errors.Join(errs...); err != nil {
					t.Errorf("%s %s, %d ranks: %v\n%s", op, dt, ranks, err, out)
				}
			}
		}
	}
}

func TestWithoutChecks(t *testing.T) {
	o := small("alltoall")
	o.Checks = 0
	out, errs := runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "N/A") {
		t.Errorf("#wrong without verification is not N/A:\n%s", out)
	}
	o.JSON = true
	out, errs = runRanks(t, 2, func(int) Options { return o })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, `"wrong":null`) {
		t.Errorf("wrong without verification is not null:\n%s", out)
	}
}

// replace lets the named collective be called in another way until the test ends.
func replace(t *testing.T, name string, call func(r *runner, dst, src device.Buffer) *comm.Work) {
	honest := collectives
	t.Cleanup(func() { collectives = honest })
	collectives = nil
	for _, c := range honest {
		if c.name == name {
			other := *c
			other.call = call
			c = &other
		}
		collectives = append(collectives, c)
	}
}

func TestWrongElementsAreCountedAndFail(t *testing.T) {
	honest, err := find("allreduce")
	if err != nil {
		t.Fatal(err)
	}
	// The first element is wrong on both ranks, the last one on rank 1.
	replace(t, "allreduce", func(r *runner, dst, src device.Buffer) *comm.Work {
		w := honest.call(r, dst, src)
		r.host.Do("spoil", func() error {
			x := dst.Bytes()
			x[0] ^= 1
			x[len(x)-1] ^= byte(r.group.Rank())
			return nil
		})
		return w
	})
	o := small("allreduce")
	o.JSON, o.Checks = true, 3
	out, errs := runRanks(t, 2, func(int) Options { return o })
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "54 elements were wrong") || errs[1] != nil {
		t.Errorf("errors %v, want 54 wrong elements (3 elements, 3 checks, 3 sizes, 2 forms), from rank 0 alone", errs)
	}
	for _, row := range decode(t, out) {
		if row.Wrong == nil || *row.Wrong != 9 {
			t.Errorf("wrong %v, want 9: %+v", row.Wrong, row)
		}
	}
}

// A collective that does nothing leaves no element right, although the calls before
// it left results in the same place.
func TestNothingDoneIsAllWrong(t *testing.T) {
	honest, err := find("allreduce")
	if err != nil {
		t.Fatal(err)
	}
	calls := make([]int, 2)
	replace(t, "allreduce", func(r *runner, dst, src device.Buffer) *comm.Work {
		calls[r.group.Rank()]++
		if calls[r.group.Rank()] == 4 { // after two of the survey and a timed one
			return r.group.Barrier(r.stream)
		}
		return honest.call(r, dst, src)
	})
	o := small("allreduce")
	o.Op = "prod" // of few different values
	o.End, o.Iterations, o.Warmup, o.Checks, o.JSON = o.Begin, 1, 0, 1, true
	out, errs := runRanks(t, 2, func(int) Options { return o })
	rows := decode(t, out)
	if errs[0] == nil || len(rows) != 2 || *rows[0].Wrong != 2*1024/4 || *rows[1].Wrong != 0 {
		t.Errorf("%v, %s: want all %d elements wrong out of place, none in place", errs, out, 2*1024/4)
	}
}

func TestTimeIsTheMedianOfTheSlowest(t *testing.T) {
	took := [][]int64{{1, 50, 300, 2, 4}, {20, 5, 30, 1, 4}} // the slowest: 20 50 300 2 4
	withRunners(t, 2, func(r *runner) {
		if s, err := r.typical(took[r.group.Rank()]); err != nil || s != 20e-9 {
			t.Errorf("rank %d: %v s, %v, want 20 ns", r.group.Rank(), s, err)
		}
	})
	if m := median([]int64{9, 1, 4, 2}); m != 3 {
		t.Errorf("the median of 9 1 4 2 is %v, want 3", m)
	}
}

func TestUnion(t *testing.T) {
	names := [][]string{{"shm"}, {"shm", "tcp"}, nil}
	withRunners(t, 3, func(r *runner) {
		if all, err := r.union(names[r.group.Rank()]); err != nil || all != "shm+tcp" {
			t.Errorf("rank %d: %q, %v, want shm+tcp", r.group.Rank(), all, err)
		}
		if all, err := r.union(nil); err != nil || all != "none" {
			t.Errorf("rank %d: %q, %v, want none", r.group.Rank(), all, err)
		}
	})
}

// withRunners calls f on n ranks at once.
func withRunners(t *testing.T, n int, f func(*runner)) {
	t.Helper()
	groups, err := comm.Local(n)
	if err != nil {
		t.Fatal(err)
	}
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			host := device.NewCPUStream("test", nil)
			r := &runner{ctx: context.Background(), group: g, dev: device.NewCPU(), host: host, stream: host}
			f(r)
			if err := errors.Join(r.close(), g.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
}

func TestRanksWithOtherOptions(t *testing.T) {
	_, errs := runRanks(t, 2, func(rank int) Options {
		o := small("allreduce")
		o.Iterations += rank
		return o
	})
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "give every node the same arguments") {
			t.Errorf("rank %d: %v, want an error about other arguments", r, err)
		}
	}
}

func TestEndOfContextAborts(t *testing.T) {
	groups, err := comm.Local(2, comm.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	o := small("allreduce")
	o.Iterations = 1 << 30
	o.Blocking = true // as many calls at once would fill the memory
	ctx, cancel := context.WithCancelCause(context.Background())
	errs := make([]error, 2)
	var ranks sync.WaitGroup
	ranks.Go(func() { errs[0] = Run(ctx, device.NewCPU(), []Engine{{Group: groups[0]}}, o, cancelsOnWrite(cancel)) })
	ranks.Go(func() {
		errs[1] = Run(context.Background(), device.NewCPU(), []Engine{{Group: groups[1]}}, o, io.Discard)
	})
	ranks.Wait()
	for r, g := range groups {
		g.Close()
		if errs[r] == nil || !strings.Contains(errs[r].Error(), "enough") {
			t.Errorf("rank %d: %v, want the context's cause", r, errs[r])
		}
	}
}

// cancelsOnWrite ends a context when the head of the report is written.
type cancelsOnWrite context.CancelCauseFunc

func (c cancelsOnWrite) Write(b []byte) (int, error) {
	c(errors.New("enough"))
	return len(b), nil
}
