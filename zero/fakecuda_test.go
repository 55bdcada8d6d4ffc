package zero

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// mirror is rank 0 of a group of two, the other of which always has what it has.
type mirror struct {
	t      *testing.T
	dev    *cuda.Device
	memory []device.Buffer
}

func (g *mirror) Rank() int       { return 0 }
func (g *mirror) Size() int       { return 2 }
func (g *mirror) Host(int) string { return "node" }
func (g *mirror) Abort(err error) { g.t.Error(err) }

func (g *mirror) Alloc(n int) (device.Buffer, error) {
	b, err := g.dev.Alloc(n)
	g.memory = append(g.memory, b)
	return b, err
}

func (g *mirror) AllReduce(s device.Stream, buf device.Buffer, _ dtype.DType, _ comm.Op) *comm.Work {
	g.routed(s, buf)
	return nil
}

func (g *mirror) Broadcast(s device.Stream, buf device.Buffer, _ dtype.DType, _ int) *comm.Work {
	g.routed(s, buf)
	return nil
}

func (g *mirror) ReduceScatter(s device.Stream, dst, src device.Buffer, _ dtype.DType, _ comm.Op) *comm.Work {
	g.routed(s, dst)
	g.routed(s, src)
	return nil
}

func (g *mirror) AllGather(s device.Stream, dst, src device.Buffer, _ dtype.DType) *comm.Work {
	g.routed(s, dst)
	for at := 0; at < dst.Len(); at += src.Len() {
		if to := dst.Slice(at, at+src.Len()); to.Addr() != src.Addr() {
			s.Copy(to, src)
		}
	}
	return nil
}

// routed checks that memory of the host goes out on a stream of the CPU, and
// memory of the device on one of CUDA.
func (g *mirror) routed(s device.Stream, b device.Buffer) {
	g.t.Helper()
	if onCUDA := s.Device() == device.Device(g.dev); onCUDA == b.OnHost() {
		g.t.Errorf("%d bytes (in host memory: %t) on a stream of %s", b.Len(), b.OnHost(), s.Device())
	}
}

// On streams of CUDA a micro-step launches one kernel for each bucket, or two where
// its type changes on the way, and Gather one; in steady state a step allocates
// nothing, asks the device for nothing, and leaves no events.
func TestStepsOnAFakeCUDADriver(t *testing.T) {
	driver := cudatest.Fake(t)
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	for stage := 1; stage <= 3; stage++ {
		stepsOnAFakeDriver(t, driver, stage)
	}
}

func stepsOnAFakeDriver(t *testing.T, driver *cudatest.Driver, stage int) {
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	stream := func(name string) device.Stream {
		s, err := dev.NewStream(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	compute, comms := stream("compute"), stream("comm")
	g := &mirror{t: t, dev: dev}
	before := driver.Live()
	params := toy(dtype.BF16)
	z, err := New(t.Context(), g, compute, comms, params, Options{
		PlanOptions: PlanOptions{Stage: stage, FirstBucket: 100, BucketCap: 1003, ReduceDType: dtype.F32}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range params {
		if err := z.SetWeight(t.Context(), p, 0, initials(p)); err != nil {
			t.Fatal(err)
		}
		h := z.Held(p)
		got := make([]float32, h.To-h.From)
		if err := z.ReadWeight(t.Context(), p, h.From, got); err != nil {
			t.Fatal(err)
		}
		if !p.Frozen && !slices.Equal(got, initials(p)[h.From:h.To]) {
			t.Errorf("stage %d: %s is read as %v", stage, p.Name, got)
		}
	}
	model := &toyModel{params: params, see: identity, do: func(string, func()) {}}

	asks := []string{"cuEventQuery", "cuEventSynchronize", "cuStreamQuery", "cuStreamSynchronize", "cuCtxSynchronize",
		"cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuMemFreeHost", "cuEventElapsedTime"}
	count := func() (list []int) {
		for _, call := range asks {
			list = append(list, driver.Calls(call))
		}
		return
	}
	events := 0
	for step := range 5 {
		launches, calls := driver.Launches(), count()
		if err := model.step(t.Context(), z, 0, 2, 2); err != nil {
			t.Fatal(err)
		}
		if err := z.Gather(); err != nil {
			t.Fatal(err)
		}
		want := len(z.buckets) * (2*2 + 1)
		if stage == 1 { // which reduces once
			want = len(z.buckets) * (2 + 1)
		}
		if n := driver.Launches() - launches; n != want {
			t.Errorf("stage %d, step %d launched %d kernels, want %d", stage, step, n, want)
		}
		if now := count(); step > 0 && !slices.Equal(now, calls) {
			t.Errorf("stage %d, step %d: of the calls %v there were %v before, and %v after", stage, step, asks, calls, now)
		}
		if err := errors.Join(compute.Synchronize(t.Context()), comms.Synchronize(t.Context())); err != nil {
			t.Fatal(err)
		}
		if _, err := z.Stats(t.Context()); err != nil {
			t.Errorf("stage %d, step %d: %v", stage, step, err)
		}
		if now := driver.Live()["events"]; step > 2 && now != events {
			t.Errorf("stage %d, step %d: %d events live, %d after the step before", stage, step, now, events)
		}
		events = driver.Live()["events"]
	}
	if err := errors.Join(z.Close(), z.Close()); err != nil {
		t.Error(err)
	}
	after := driver.Live()
	if after["memory"] -= len(g.memory); after["memory"] == 0 {
		delete(after, "memory")
	}
	delete(after, "events") // of the pool
	delete(before, "events")
	if !maps.Equal(after, before) {
		t.Errorf("stage %d: %v live after Close, %v before New; the group has %d pieces of memory", stage, after, before, len(g.memory))
	}
	for _, b := range g.memory {
		if err := dev.Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(compute.Close(), comms.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
