package zero

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// worker is one rank of a test.
type worker struct {
	t             *testing.T
	ctx           context.Context
	rank, size    int
	engine        string
	group         Group
	compute, comm hostStream
	gpu           *devicetest.GPU // that the streams are of, nil for the CPU
	params        []*param.Param  // the rank's own
	zero          *Zero           // the last that new has made
	made          []io.Closer     // Zeros and Models
	allocs        int             // pieces of device memory that the test itself has

	arrive func() // see meet
	others *sync.WaitGroup
}

// meet waits, once in a test, for all ranks to come here. An abort that follows
// does not disturb what a slower rank did before.
func (w *worker) meet() {
	w.arrive()
	w.others.Wait()
}

// engines are the kinds of groups that every test runs on: the hub of this
// package, whose arithmetic is plain and whose calls are recorded, on the CPU and
// with a device for each rank, and comm's.
var engines = []struct {
	name  string
	group func(t *testing.T, n int) []Group
}{
	{"hub", func(t *testing.T, n int) []Group {
		var list []Group
		for _, g := range newHub(n) {
			list = append(list, g)
		}
		return list
	}},
	{"gpu", func(t *testing.T, n int) []Group {
		var list []Group
		for _, g := range newHub(n) {
			g.gpu = devicetest.NewGPU(t)
			list = append(list, g)
		}
		return list
	}},
	{"comm", func(t *testing.T, n int) []Group {
		groups, err := comm.Local(n, comm.Options{Timeout: time.Minute, Algo: comm.Direct, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var list []Group
		for _, g := range groups {
			list = append(list, g)
		}
		return list
	}},
}

// ranks runs do on n ranks, each in a goroutine with two streams and parameters
// of its own, and waits for all; once with each kind of group, or with those named.
func ranks(t *testing.T, n int, params func() []*param.Param, do func(w *worker), only ...string) {
	t.Helper()
	for _, e := range engines {
		if len(only) > 0 && !slices.Contains(only, e.name) {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			noLeaks(t)
			run(t, e.name, e.group(t, n), params, do)
		})
	}
}

func run(t *testing.T, engine string, groups []Group, params func() []*param.Param, do func(w *worker)) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg, meeting sync.WaitGroup
	meeting.Add(len(groups))
	for r, g := range groups {
		wg.Go(func() {
			w := &worker{t: t, ctx: ctx, rank: r, size: len(groups), engine: engine, group: g, params: params(),
				compute: device.NewCPUStream("compute", nil), comm: device.NewCPUStream("comm", nil),
				arrive: sync.OnceFunc(meeting.Done), others: &meeting}
			fake, _ := g.(*fakeGroup)
			if fake != nil && fake.gpu != nil {
				w.gpu = fake.gpu
				w.compute, w.comm = w.gpu.Run(w.compute.(*device.CPUStream)), w.gpu.Run(w.comm.(*device.CPUStream))
			}
			defer func() {
				w.arrive()
				if t.Failed() {
					g.Abort(errors.New("the test has failed"))
				}
				// What failed is asserted where it is expected.
				w.compute.Synchronize(ctx)
				w.comm.Synchronize(ctx)
				for _, z := range w.made {
					if err := errors.Join(z.Close(), z.Close()); err != nil {
						t.Errorf("rank %d: Close: %v", r, err)
					}
				}
				w.compute.Close()
				w.comm.Close()
				if w.gpu != nil {
					w.gpu.Left(fake.allocs + w.allocs)
				}
				if g, ok := g.(*comm.Group); ok {
					g.Close()
				}
			}()
			do(w)
		})
	}
	wg.Wait()
}

// start makes w's Zero. It reports false, and fails the test, on an error.
func (w *worker) start(o Options) bool { return w.ok("New", w.new(o)) }

func (w *worker) new(o Options) error {
	if w.gpu != nil {
		o.memory = fakeMemory{w.gpu}
	}
	z, err := New(w.ctx, w.group, w.compute, w.comm, w.params, o)
	if err == nil {
		w.zero, w.made = z, append(w.made, z)
	}
	return err
}

// alloc is memory of the streams' device.
func (w *worker) alloc(dt dtype.DType, shape ...int) tensor.Tensor {
	w.allocs++
	t, err := tensor.Alloc(w.compute.Device(), dt, shape...)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// see is t where the test can read and write it.
func (w *worker) see(t tensor.Tensor) tensor.Tensor { return w.gpu.See(t) }

func (w *worker) ok(what string, err error) bool {
	if err != nil {
		w.t.Errorf("rank %d: %s: %v", w.rank, what, err)
		w.group.Abort(err)
	}
	return err == nil
}

// wants checks that err holds all of texts.
func (w *worker) wants(err error, texts ...string) {
	w.t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			w.t.Errorf("rank %d: got error %v, want one with %q", w.rank, err, text)
		}
	}
}

func (w *worker) synchronize() bool {
	return w.ok("compute stream", w.compute.Synchronize(w.ctx))
}

func loader(t tensor.Tensor) func(i int) float64 {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int) float64 { return float64(v[i]) }
	case dtype.F64:
		v := t.F64()
		return func(i int) float64 { return v[i] }
	}
	v, widen := device.View[uint16](t.Buf), dtype.BF16To
	if t.DType == dtype.F16 {
		widen = dtype.F16To
	}
	return func(i int) float64 { return float64(widen(v[i])) }
}

func storer(t tensor.Tensor) func(i int, x float64) {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int, x float64) { v[i] = float32(x) }
	case dtype.F64:
		v := t.F64()
		return func(i int, x float64) { v[i] = x }
	}
	v, narrow := device.View[uint16](t.Buf), dtype.BF16From
	if t.DType == dtype.F16 {
		narrow = dtype.F16From
	}
	return func(i int, x float64) { v[i] = narrow(float32(x)) }
}

// noLeaks fails t when it leaves goroutines of streams or of this package behind.
func noLeaks(t *testing.T) {
	t.Cleanup(func() {
		deadline := time.Now().Add(30 * time.Second)
		for {
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			leaked := strings.Count(string(stacks), "(*CPUStream).run") + strings.Count(string(stacks), "gorun/comm.")
			if leaked == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d goroutines of streams or groups are left:\n%s", leaked, stacks)
				return
			}
			runtime.Gosched()
		}
	})
}
