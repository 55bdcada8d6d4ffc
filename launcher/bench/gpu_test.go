package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// runGPUs runs the benchmark on fake GPUs with a fake NCCL, a rank each, with the named
// engines.
func runGPUs(t *testing.T, n int, o Options, names ...string) (string, error) {
	t.Helper()
	driver := cudatest.FakeOf(t, cudatest.Machine{GPUs: n})
	nccltest.Fake(t, driver)
	devices, perRank := make([]device.Device, n), make([]comm.Options, n)
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		devices[i] = d
		perRank[i] = comm.Options{Device: d, Engine: "nccl", Timeout: time.Minute}
	}
	engines := make([][]Engine, n)
	for _, name := range names {
		groups, err := comm.Local(n, perRank...)
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range groups {
			engines[i] = append(engines[i], Engine{Name: name, Group: g})
		}
	}
	var out bytes.Buffer
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for i := range n {
		ranks.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			w := io.Writer(&out)
			if i > 0 {
				w = failingWriter{}
			}
			errs[i] = Run(context.Background(), devices[i], engines[i], o, w)
			for _, e := range engines[i] {
				errs[i] = errors.Join(errs[i], e.Group.Close())
			}
		})
	}
	ranks.Wait()
	for i, d := range devices {
		errs[i] = errors.Join(errs[i], d.(*cuda.Device).Close())
	}
	if live := driver.Live(); len(live) > 0 {
		t.Errorf("left over on the GPUs: %v", live)
	}
	return out.String(), errors.Join(errs...)
}

func TestGPUs(t *testing.T) {
	for _, name := range Names() {
		for what, change := range map[string]func(*Options){
			"mean over the iterations": func(*Options) {},
			"99th percentile":          func(o *Options) { o.Tail, o.Aggregate = true, 2 },
			"each call awaited":        func(o *Options) { o.Blocking = true },
			"buffers private":          func(o *Options) { o.Buffers = Private },
		} {
			o := small(name)
			o.Device, o.Engine = "gpu", "nccl"
			change(&o)
			out, err := runGPUs(t, 2, o, "")
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !strings.Contains(out, what) || !strings.Contains(out, "transport gpu") || !strings.Contains(out, "# engine nccl: nccl ") {
				t.Errorf("the report does not say %q, the transport or the engine:\n%s", what, out)
			}
		}
	}
}

// Two engines side by side: every row has both, and how many times the first is faster.
func TestEnginesSideBySide(t *testing.T) {
	o := small("allreduce")
	o.Device, o.Engine = "gpu", AllEngines
	out, err := runGPUs(t, 2, o, "ring", "nccl")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") {
			if rows++; len(strings.Fields(line)) != 5+4+4+1 {
				t.Errorf("%q has not 4 columns of each engine and a ratio", line)
			}
		}
	}
	if rows != 3 || !strings.Contains(out, "average busbw of nccl") || !strings.Contains(out, "ratio") {
		t.Errorf("%d rows, want 3:\n%s", rows, out)
	}
	o.JSON = true
	if out, err = runGPUs(t, 2, o, "ring", "nccl"); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, row := range decode(t, out) {
		count[row.Engine]++
	}
	if count["ring"] != 6 || count["nccl"] != 6 {
		t.Errorf("rows of %v, want 6 of each engine", count)
	}
}

// A product by cuBLASLt beside the collectives of each engine, a row for each.
func TestProductOnGPUs(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // for the choice of the product's algorithm
	fakelt.Fake(t)
	o := small("allgather")
	o.Device, o.Engine, o.Overlap, o.End = "gpu", AllEngines, 16, o.Begin
	out, err := runGPUs(t, 2, o, "ring", "nccl")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "# product: 16 x 16, bf16 by cuBLASLt ") || strings.Count(out, " ring\n") != 1 || strings.Count(out, " nccl\n") != 2 { // it is an algorithm too
		t.Errorf("the product or a row is missing:\n%s", out)
	}
}
