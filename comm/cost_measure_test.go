package comm_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// ownCache gives the test a cache folder of its own, and returns that of the tables.
func ownCache(t *testing.T) string {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("GORUN_COMM_TUNE", "1m") // also on a machine that is slow
	folder, err := tune.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// tables are the files in the cache.
func tables(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(folder + "/*")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// sum makes an AllReduce of n floats on all ranks and returns rank 0's result.
func sum(t *testing.T, groups []*comm.Group, n int) (r comm.Result) {
	t.Helper()
	commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
		w := g.AllReduce(s, device.Of(make([]float32, n)), dtype.F32, comm.Sum)
		err := w.Wait(ctx)
		if g.Rank() == 0 {
			r = w.Result()
		}
		return err
	})
	return r
}

// The first group measures its links, all ranks have the same figures, and later groups
// take them from the cache.
func TestLinksAreMeasuredOnce(t *testing.T) {
	commtest.CheckLeaks(t)
	folder := ownCache(t)
	o := comm.Options{Transport: "local", Tune: "auto"}
	first := commtest.Groups(t, 3, o)
	if len(tables(t, folder)) != 1 {
		t.Fatalf("the cache holds %v, want one table", tables(t, folder))
	}
	measured := first[0].Tuning()
	if !strings.Contains(string(measured), `"AllReduce"`) {
		t.Fatalf("measured %s", measured)
	}
	for _, groups := range [][]*comm.Group{first, commtest.Groups(t, 3, o)} {
		for _, g := range groups {
			if string(g.Tuning()) != string(measured) {
				t.Errorf("rank %d has %s, rank 0 measured %s", g.Rank(), g.Tuning(), measured)
			}
		}
	}
	commtest.Groups(t, 2, o)
	if len(tables(t, folder)) != 2 {
		t.Errorf("the cache holds %v: want another table for 2 ranks", tables(t, folder))
	}
	if r := sum(t, first, 1000); r.Predicted <= 0 {
		t.Errorf("nothing is predicted: %+v", r)
	}
}

// edit changes the points of a table in the cache.
func edit(t *testing.T, file string, change func([]tune.Point) []tune.Point) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kept struct {
		Key    string       `json:"key"`
		Points []tune.Point `json:"points"`
	}
	if err := json.Unmarshal(b, &kept); err != nil {
		t.Fatal(err)
	}
	kept.Points = change(kept.Points)
	if b, err = json.Marshal(kept); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// What the cache says decides.
func TestMeasurementsChoose(t *testing.T) {
	folder := ownCache(t)
	o := comm.Options{Transport: "local", Tune: "auto"}
	commtest.Groups(t, 3, o)
	file := tables(t, folder)[0]
	for _, want := range []comm.Algorithm{comm.Ring, comm.OneShot, comm.Doubling} {
		edit(t, file, func(points []tune.Point) []tune.Point {
			for i := range points {
				points[i].Seconds = 1
				if points[i].Algorithm == string(want) {
					points[i].Seconds = 1e-9
				}
			}
			return points
		})
		groups := commtest.Groups(t, 3, o)
		if r := sum(t, groups, 1024); r.Algorithm != want {
			t.Errorf("the cheapest by far is %s, and %s was taken", want, r.Algorithm)
		}
		// The group's own groups choose alike, without a measurement of their own.
		commtest.Run(t, groups, func(g *comm.Group, s *device.CPUStream) error {
			if g.Rank() == 1 {
				return nil
			}
			part, err := g.Sub([]int{2, 0})
			if err != nil {
				return err
			}
			w := part.AllReduce(s, device.Of(make([]float32, 1024)), dtype.F32, comm.Sum)
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if a := w.Result().Algorithm; a != want {
				t.Errorf("a part of the group takes %s, the group %s", a, want)
			}
			return part.Close()
		})
	}
	if n := len(tables(t, folder)); n != 1 {
		t.Errorf("%d tables, want one", n)
	}
}

// A cache that cannot be read is said and measured anew; one that cannot be written is
// said too.
func TestABrokenCacheIsMeasuredAgain(t *testing.T) {
	folder := ownCache(t)
	log := &logged{}
	o := comm.Options{Transport: "local", Tune: "auto", Logger: slog.New(slog.NewTextHandler(log, nil))}
	commtest.Groups(t, 2, o)
	file := tables(t, folder)[0]
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, whole[:len(whole)/2], 0o666); err != nil {
		t.Fatal(err)
	}
	if log.String() != "" {
		t.Errorf("nothing is wrong yet, and it says %s", log)
	}
	groups := commtest.Groups(t, 2, o)
	if !strings.Contains(log.String(), "measured again") || !strings.Contains(log.String(), file) {
		t.Errorf("the broken file is not named: %s", log)
	}
	again, err := tune.Decode(groups[1].Tuning())
	if err != nil || len(again.Points()) == 0 {
		t.Errorf("%v, %v: want new measurements", again, err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(b)), "}") {
		t.Errorf("%v: the file is not whole again: %s", err, b)
	}
	t.Setenv("XDG_CACHE_HOME", file) // no folder
	commtest.Groups(t, 2, o)
	if !strings.Contains(log.String(), "is not kept") {
		t.Errorf("that nothing is kept is not said: %s", log)
	}
}

// Points that this machine cannot have measured are measured anew too, and the file is
// whole again.
func TestNonsenseInTheCacheIsMeasuredAgain(t *testing.T) {
	folder := ownCache(t)
	log := &logged{}
	o := comm.Options{Transport: "local", Tune: "auto", Logger: slog.New(slog.NewTextHandler(log, nil))}
	commtest.Groups(t, 2, o)
	file := tables(t, folder)[0]
	edit(t, file, func(p []tune.Point) []tune.Point { // as slow links leave it: whole sizes, from the smallest on
		return slices.DeleteFunc(p, func(p tune.Point) bool { return p.Bytes > 1<<10 })
	})
	commtest.Groups(t, 2, o)
	if log.String() != "" {
		t.Errorf("a measurement of one size is refused: %s", log)
	}
	for what, c := range map[string]struct {
		change func(points []tune.Point) []tune.Point
		says   string
	}{
		"none":           {func([]tune.Point) []tune.Point { return nil }, "no measurements"},
		"one is missing": {func(p []tune.Point) []tune.Point { return p[1:] }, "is not in it"},
		"one too many": {func(p []tune.Point) []tune.Point {
			return append(p, tune.Point{Call: "Mend", Algorithm: "ring", Bytes: 8, Expected: 1, Seconds: 1})
		}, "have"},
		"no time at all":       {func(p []tune.Point) []tune.Point { p[0].Seconds = 0; return p }, "cannot have been measured"},
		"longer than a day":    {func(p []tune.Point) []tune.Point { p[0].Seconds = 1e6; return p }, "cannot have been measured"},
		"another formula":      {func(p []tune.Point) []tune.Point { p[0].Expected *= 1.001; return p }, "by the formula"},
		"another algorithm":    {func(p []tune.Point) []tune.Point { p[0].Algorithm = "hive"; return p }, "is not in it"},
		"sizes not measured":   {func(p []tune.Point) []tune.Point { p[0].Bytes++; return p }, "is not in it"},
		"the same point twice": {func(p []tune.Point) []tune.Point { return append(p, p[0]) }, "of the same"},
	} {
		before := len(log.String())
		edit(t, file, c.change)
		groups := commtest.Groups(t, 2, o)
		said := log.String()[before:]
		if strings.Count(said, "\n") != 1 || !strings.Contains(said, "measured again") || !strings.Contains(said, file) || !strings.Contains(said, c.says) {
			t.Errorf("%s: want one line with the file and %q: %s", what, c.says, said)
		}
		if r := sum(t, groups, 1000); r.Predicted <= 0 || r.Predicted > time.Minute {
			t.Errorf("%s: the sum is predicted to take %s", what, r.Predicted)
		}
	}
	commtest.Groups(t, 2, o)
	if n := strings.Count(log.String(), "\n"); n != 9 {
		t.Errorf("the file is still refused: %d lines for 9 faults", n)
	}
}

// Ranks of one host, groups that asked for nothing, and single ranks measure nothing.
func TestWhoMeasuresNothing(t *testing.T) {
	folder := ownCache(t)
	for what, groups := range map[string][]*comm.Group{
		"shm":   commtest.Groups(t, 2, comm.Options{Transport: "shm", Tune: "auto"}),
		"off":   commtest.Groups(t, 2, comm.Options{Transport: "tcp", Tune: "off"}),
		"local": commtest.Groups(t, 2),
		"alone": commtest.Groups(t, 1, comm.Options{Transport: "tcp", Tune: "auto"}),
	} {
		if b := groups[0].Tuning(); b != nil {
			t.Errorf("%s: measured %s", what, b)
		}
		if r := sum(t, groups, 100); what == "shm" && r.Predicted != 0 {
			t.Errorf("%s: shared memory has one algorithm, and %s is predicted", what, r.Predicted)
		}
	}
	if files := tables(t, folder); len(files) > 0 {
		t.Errorf("the cache holds %v", files)
	}
	if _, err := comm.Local(2, comm.Options{Tune: "later"}); err == nil || !strings.Contains(err.Error(), "want auto or off") {
		t.Errorf("tune later: %v", err)
	}
}

// Hosts of different sizes: a rank that has no part in what goes between hosts takes
// part in the decision alone.
func TestLanesAreMeasured(t *testing.T) {
	commtest.CheckLeaks(t)
	folder := ownCache(t)
	for _, hosts := range [][]string{{"a", "a", "b"}, {"a", "b", "b", "a"}} {
		groups, err := comm.LocalOn(hosts, comm.Options{Tune: "auto", Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		want := groups[0].Tuning()
		for _, g := range groups {
			if got := g.Tuning(); string(got) != string(want) || got == nil {
				t.Errorf("%v: rank %d has %s, rank 0 %s", hosts, g.Rank(), got, want)
			}
		}
		table, err := tune.Decode(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range table.Points() {
			if p.Call != "AllReduce" {
				t.Errorf("%v: measured %+v, which does not go over lanes", hosts, p)
			}
		}
		sum(t, groups, 1<<16)
		if err := commtest.Close(groups); err != nil {
			t.Error(err)
		}
		log := &logged{}
		groups, err = comm.LocalOn(hosts, comm.Options{Tune: "auto", Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(groups[0].Tuning()); got != string(want) || log.String() != "" {
			t.Errorf("%v: a later job has %s, the first one measured %s: %s", hosts, got, want, log)
		}
		if err := commtest.Close(groups); err != nil {
			t.Error(err)
		}
	}
	if n := len(tables(t, folder)); n != 2 {
		t.Errorf("%d tables, want one for each layout", n)
	}
}

// A job that goes on takes what it took before.
func TestRetune(t *testing.T) {
	ownCache(t)
	groups := commtest.Groups(t, 3)
	if r := sum(t, groups, 256); r.Algorithm == comm.Ring {
		t.Fatal("a ring is taken for a small sum")
	}
	saved := []byte(`[{"call":"AllReduce","algorithm":"ring","bytes":1024,"expected":1,"seconds":1e-9}]`)
	for _, g := range groups {
		if err := g.Retune(saved); err != nil {
			t.Fatal(err)
		}
	}
	if r := sum(t, groups, 256); r.Algorithm != comm.Ring {
		t.Errorf("%s is taken, and the earlier job took a ring", r.Algorithm)
	}
	if err := groups[0].Retune([]byte("?")); err == nil {
		t.Error("what is no table is taken")
	}
}

func TestChoicesAreCounted(t *testing.T) {
	groups := commtest.Groups(t, 3)
	for _, n := range []int{256, 200, 256, 1 << 20} { // floats
		sum(t, groups, n)
	}
	choices := groups[0].Stats().Choices
	if len(choices) != 2 {
		t.Fatalf("%+v: want two classes of sizes", choices)
	}
	var calls []int64
	var bytes []int
	for _, c := range choices {
		calls, bytes = append(calls, c.Calls), append(bytes, c.Bytes)
		if c.Call != transport.AllReduce || c.Predicted <= 0 || c.Mean <= 0 || c.GPU {
			t.Errorf("%+v: want AllReduce of host memory, a prediction and a mean", c)
		}
	}
	if !reflect.DeepEqual(calls, []int64{3, 1}) || !reflect.DeepEqual(bytes, []int{1024, 4 << 20}) {
		t.Errorf("%v calls of up to %v bytes, want 3 of 1024 and 1 of 4 MiB", calls, bytes)
	}
}

// Calls on GPUs are counted too, without a prediction, for their engine chooses.
func TestChoicesOnGPUsAreCounted(t *testing.T) {
	m := newMachine(t, 2)
	groups := m.groups(t, comm.Options{Engine: "nccl"})
	commtest.RunOn(t, groups, m.devices, func(g *comm.Group, s device.Stream) error {
		x := f32(s, 300)
		for range 2 {
			if err := g.AllReduce(s, x, dtype.F32, comm.Sum).Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	choices := groups[0].Stats().Choices
	if len(choices) != 1 || !choices[0].GPU || choices[0].Algorithm != comm.NCCL || choices[0].Calls != 2 || choices[0].Bytes != 2048 || choices[0].Predicted != 0 {
		t.Errorf("%+v: want two calls of up to 2048 bytes by NCCL", choices)
	}
}

func TestTuneTimeThatIsNone(t *testing.T) {
	ownCache(t)
	commtest.Groups(t, 2, comm.Options{Transport: "local", Tune: "auto"})
	t.Setenv("GORUN_COMM_TUNE", "long") // said also where nothing is left to measure
	if _, err := comm.Local(2, comm.Options{Tune: "auto"}); err == nil || !strings.Contains(err.Error(), "GORUN_COMM_TUNE=long: want how long") {
		t.Errorf("got %v", err)
	}
}
