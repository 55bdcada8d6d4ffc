package ddp

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
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

func (g *mirror) AllGather(s device.Stream, dst, src device.Buffer, _ dtype.DType) *comm.Work {
	g.routed(s, dst)
	s.Copy(dst.Slice(0, src.Len()), src)
	s.Copy(dst.Slice(src.Len(), dst.Len()), src)
	return nil
}

func (g *mirror) AllToAll(s device.Stream, dst, src device.Buffer, _ dtype.DType) *comm.Work {
	g.routed(s, dst)
	half := src.Len() / 2
	s.Copy(dst.Slice(0, half), src.Slice(0, half))
	s.Copy(dst.Slice(half, dst.Len()), src.Slice(0, half))
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

// On streams of CUDA a step launches the conversions of each bucket and nothing
// else, allocates nothing, asks the device for nothing, and leaves no events.
func TestStepsOnAFakeCUDADriver(t *testing.T) {
	driver := cudatest.Fake(t)
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
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
	mean, err := tensor.Alloc(dev, dtype.F32, 3)
	if err != nil {
		t.Fatal(err)
	}
	g := &mirror{t: t, dev: dev}
	before := driver.Live()
	params := seven()
	d, err := New(t.Context(), g, compute, comms, params, Options{
		PlanOptions: PlanOptions{FirstBucket: 64, BucketCap: 48, GradDType: dtype.BF16}, ReduceDType: dtype.F32,
		FindUnused: true, Buffers: []Buffer{{"mean", mean}}})
	if err != nil {
		t.Fatal(err)
	}

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
		if err := d.StepBegin(true); err != nil {
			t.Fatal(err)
		}
		for _, p := range slices.Backward(params) {
			if !p.Frozen && p.Name != "a.b" {
				d.Get(p)
				d.Ready(p)
			}
		}
		if err := d.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, want := driver.Launches()-launches, 2*len(d.Buckets()); n != want {
			t.Errorf("step %d launched %d kernels, want %d", step, n, want)
		}
		if now := count(); !slices.Equal(now, calls) {
			t.Errorf("step %d: of the calls %v there were %v before, and %v after", step, asks, calls, now)
		}
		if last := driver.Last(); last.Function != "convert_bf16_f32" {
			t.Errorf("step %d: the last kernel is %s, want the conversion back", step, last.Function)
		}
		if err := compute.Synchronize(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, err := d.Stats(t.Context()); err != nil || len(s.Buckets) != len(d.Buckets()) {
			t.Errorf("step %d: stats %+v, %v", step, s, err)
		}
		if now := driver.Live()["events"]; step > 1 && now != events {
			t.Errorf("step %d: %d events live, %d after the step before", step, now, events)
		}
		events = driver.Live()["events"]
	}

	launches := driver.Launches()
	weights := map[*param.Param]tensor.Tensor{}
	for _, p := range params {
		weights[p] = tensor.New(d.arena.Slice(0, 4*p.Numel()), p.DType, p.Shape...)
	}
	if err := d.CheckReplicas(t.Context(), params, func(p *param.Param) tensor.Tensor { return weights[p] }); err != nil {
		t.Error(err)
	}
	if n := driver.Launches() - launches; n != len(params) || driver.Last().Function != "checksum" {
		t.Errorf("%d checksums of %d weights (%s)", n, len(params), driver.Last().Function)
	}

	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	after := driver.Live()
	after["memory"] -= len(g.memory)
	delete(after, "events") // of the pool
	delete(before, "events")
	if !maps.Equal(after, before) {
		t.Errorf("%v live after Close, %v before New; the group has %d pieces of memory", after, before, len(g.memory))
	}
	for _, s := range []device.Stream{compute, comms} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if live := driver.Live(); len(live) > 0 {
		t.Errorf("%v live after the device's Close", live)
	}
}

// A bucket that is compressed takes conversions and additions alone, on the
// communication stream: to 16 bits, the sum of the ranks' parts, and back.
func TestCompressedStepsOnAFakeCUDADriver(t *testing.T) {
	driver := cudatest.Fake(t)
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	compute, err := dev.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	comms, err := dev.NewStream("comm")
	if err != nil {
		t.Fatal(err)
	}
	params := seven()
	d, err := New(t.Context(), &mirror{t: t, dev: dev}, compute, comms, params, Options{
		PlanOptions: PlanOptions{FirstBucket: 64, BucketCap: 48}, Compress: compressor(t, compress.Options{Scheme: compress.BF16})})
	if err != nil {
		t.Fatal(err)
	}
	for step := range 3 {
		launches, allocs := driver.Launches(), driver.Calls("cuMemAlloc")
		if err := d.StepBegin(true); err != nil {
			t.Fatal(err)
		}
		grown := driver.Calls("cuMemAlloc") - allocs
		for _, p := range slices.Backward(params) {
			if !p.Frozen {
				d.Get(p)
				d.Ready(p)
			}
		}
		if err := d.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, want := driver.Launches()-launches, 5*len(d.Buckets()); n != want {
			t.Errorf("step %d launched %d kernels, want %d", step, n, want)
		}
		if n := driver.Calls("cuMemAlloc") - allocs; n != grown || grown > 0 && step != 1 {
			t.Errorf("step %d allocated %d times, %d of them for another layout", step, n, grown)
		}
		if last := driver.Last(); last.Function != "convert_f32_bf16" {
			t.Errorf("step %d: the last kernel is %s, want the conversion back", step, last.Function)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for _, s := range []device.Stream{compute, comms} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
