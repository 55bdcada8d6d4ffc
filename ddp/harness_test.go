package ddp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
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
	group         Group
	compute, comm hostStream
	gpu           *devicetest.GPU // that the streams are of, nil for the CPU
	params        []*param.Param  // the rank's own
	ddp           *DDP            // the last that new has made
	made          []io.Closer     // DDPs and Models
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
		groups, err := comm.Local(n, comm.Options{Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
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
// of its own, and waits for all; once with each kind of group.
func ranks(t *testing.T, n int, params func() []*param.Param, do func(w *worker)) {
	t.Helper()
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			noLeaks(t)
			run(t, e.group(t, n), params, do)
		})
	}
}

func run(t *testing.T, groups []Group, params func() []*param.Param, do func(w *worker)) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg, meeting sync.WaitGroup
	meeting.Add(len(groups))
	for r, g := range groups {
		wg.Go(func() {
			w := &worker{t: t, ctx: ctx, rank: r, size: len(groups), group: g, params: params(),
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
				for _, d := range w.made {
					if err := errors.Join(d.Close(), d.Close()); err != nil {
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

// calls are the collectives that a rank of a hub has called, nil elsewhere.
func (w *worker) calls() []string {
	if g, ok := w.group.(*fakeGroup); ok {
		return g.calls
	}
	return nil
}

// start makes w's DDP. It reports false, and fails the test, on an error.
func (w *worker) start(o Options) bool { return w.ok("New", w.new(o)) }

func (w *worker) new(o Options) error {
	if w.gpu != nil {
		o.memory = fakeMemory{w.gpu}
	}
	d, err := New(w.ctx, w.group, w.compute, w.comm, w.params, o)
	if err == nil {
		w.ddp, w.made = d, append(w.made, d)
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

// give is a backward pass's part for p: it gets the gradient, enqueues work that
// writes or adds value(e) to element e, and says that it is ready.
func (w *worker) give(p *param.Param, value func(e int) float32) {
	w.write(p, value)
	w.ddp.Ready(p)
}

func (w *worker) write(p *param.Param, value func(e int) float32) {
	grad, add := w.ddp.Get(p)
	w.compute.Do("write "+p.Name, func() error {
		load, store := loader(w.see(grad)), storer(w.see(grad))
		for e := range grad.Numel() {
			v := float64(value(e))
			if add {
				v += load(e)
			}
			store(e, v)
		}
		return nil
	})
}

// step is a synced micro-step in which every parameter gets value.
func (w *worker) step(value float32) bool {
	if !w.ok("StepBegin", w.ddp.StepBegin(true)) {
		return false
	}
	for i := len(w.params) - 1; i >= 0; i-- {
		if !w.params[i].Frozen {
			w.give(w.params[i], constant(value))
		}
	}
	return w.ok("Finish", w.ddp.Finish(w.ctx)) && w.synchronize()
}

func (w *worker) synchronize() bool {
	return w.ok("compute stream", w.compute.Synchronize(w.ctx))
}

// holds checks every element of a gradient.
func (w *worker) holds(name string, grad tensor.Tensor, want func(e int) float64) {
	w.t.Helper()
	if grad.None() {
		w.t.Errorf("rank %d: %s is absent", w.rank, name)
		return
	}
	load := loader(w.see(grad))
	for e := range grad.Numel() {
		if got := load(e); !(got == want(e)) {
			w.t.Errorf("rank %d: gradient of %s[%d] is %v, want %v", w.rank, name, e, got, want(e))
			return
		}
	}
}

func constant(v float32) func(int) float32 { return func(int) float32 { return v } }

func exactly(v float64) func(int) float64 { return func(int) float64 { return v } }

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

func loader(t tensor.Tensor) func(i int) float64 {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int) float64 { return float64(v[i]) }
	case dtype.F64:
		v := t.F64()
		return func(i int) float64 { return v[i] }
	}
	v, to := device.View[uint16](t.Buf), dtype.F16To
	if t.DType == dtype.BF16 {
		to = dtype.BF16To
	}
	return func(i int) float64 { return float64(to(v[i])) }
}

// storer rounds f64 to 16 bits by way of f32, as other types arrive exactly.
func storer(t tensor.Tensor) func(i int, x float64) {
	switch t.DType {
	case dtype.F32:
		v := t.F32()
		return func(i int, x float64) { v[i] = float32(x) }
	case dtype.F64:
		v := t.F64()
		return func(i int, x float64) { v[i] = x }
	}
	v, from := device.View[uint16](t.Buf), dtype.F16From
	if t.DType == dtype.BF16 {
		from = dtype.BF16From
	}
	return func(i int, x float64) { v[i] = from(float32(x)) }
}
