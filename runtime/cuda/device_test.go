package cuda

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

func TestWhyThereIsNoGPU(t *testing.T) {
	for name, c := range map[string]struct {
		machine cudatest.Machine
		fail    string
		code    Result
		want    []string
	}{
		"none":              {machine: cudatest.Machine{GPUs: -1}, want: []string{"cuInit", "no CUDA-capable device", "CUDA_ERROR_NO_DEVICE"}},
		"old driver":        {machine: cudatest.Machine{Version: 11040}, want: []string{"knows CUDA 11.4", "12.0 is needed", "NVIDIA driver"}},
		"old, and lacks":    {machine: cudatest.Machine{Version: 11040, Lacks: []string{"cuTensorMapEncodeTiled"}}, want: []string{"knows CUDA 11.4"}},
		"lacks a function":  {machine: cudatest.Machine{Lacks: []string{"cuMemAlloc_v2"}}, want: []string{"no function cuMemAlloc_v2", "knows CUDA 13.0"}},
		"lacks its version": {machine: cudatest.Machine{Lacks: []string{"cuDriverGetVersion"}}, want: []string{"no function cuDriverGetVersion"}},
		"does not start":    {fail: "cuInit", code: 999, want: []string{"cuInit: unknown error (CUDA_ERROR_UNKNOWN)"}},
		"no version":        {fail: "cuDriverGetVersion", code: 999, want: []string{"cuDriverGetVersion: unknown error"}},
		"no count":          {fail: "cuDeviceGetCount", code: 999, want: []string{"cuDeviceGetCount: unknown error"}},
		"a code of its own": {fail: "cuDeviceGetCount", code: 12345, want: []string{"cuDeviceGetCount", "CUresult 12345"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := cudatest.FakeOf(t, c.machine)
			if c.fail != "" {
				f.Fail(c.fail, c.code)
			}
			n, err := Count()
			if n != 0 || err == nil {
				t.Fatalf("%d GPUs, %v", n, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if _, again := Open(0); again == nil || again.Error() != err.Error() {
				t.Errorf("Open says %v, Count %v", again, err)
			}
		})
	}
}

func TestTheLibraryIsMissing(t *testing.T) {
	cudatest.Fake(t) // for what it undoes in the end
	t.Setenv("GORUN_CUDA_LIB", "/nowhere/libcuda.so.1")
	if _, err := Count(); err == nil || !strings.Contains(err.Error(), "GORUN_CUDA_LIB") || !strings.Contains(err.Error(), "the CUDA driver") {
		t.Errorf("Count says %v", err)
	}
}

// A driver that is older than a function which not all need works without it.
func TestAnOlderDriverServes(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{Version: 12000, Lacks: []string{"cuFuncGetParamInfo"}})
	d := open(t, f)
	if major, minor, err := DriverVersion(); major != 12 || minor != 0 || err != nil {
		t.Errorf("version %d.%d, %v", major, minor, err)
	}
	s := stream(t, d, "s")
	Launch(s, function(t, d, "add"), Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &struct{ A, B, C, D, E uint64 }{})
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	if f.Launches() != 1 || len(f.Last().Params) != 40 {
		t.Errorf("%d launches, %+v", f.Launches(), f.Last())
	}
	// Where tensor maps belong it cannot tell.
	Launch(s, function(t, d, "mapped"), Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &struct {
		Map  TensorMap
		A, B uint64
	}{})
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "mapped takes tensor maps") || !strings.Contains(err.Error(), "12.4") {
		t.Errorf("tensor maps: %v", err)
	}
}

func TestADeviceSaysWhatItIs(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	d := open(t, f)
	major, minor := d.Arch()
	if d.String() != "cuda:0" || d.Kind() != device.CUDA || d.Name() != "Fake GPU" || major != 9 || minor != 0 || d.SMs() != 132 {
		t.Errorf("%v, %v, %q, %d.%d, %d SMs", d, d.Kind(), d.Name(), major, minor, d.SMs())
	}
	if d.UUID() != "GPU-00112233-4455-6677-8899-aabbccddee00" {
		t.Error(d.UUID())
	}
	if v, err := d.Attribute(SharedPerBlockOptIn); v != 227<<10 || err != nil {
		t.Errorf("shared memory %d, %v", v, err)
	}
	if _, err := d.Attribute(10000); err == nil || !strings.Contains(err.Error(), "cuda:0: cuDeviceGetAttribute(10000): invalid argument") {
		t.Errorf("an attribute that does not exist: %v", err)
	}
	for _, n := range []int{-1, 2} {
		if _, err := Open(n); err == nil || !strings.Contains(err.Error(), "2 visible") {
			t.Errorf("Open(%d): %v", n, err)
		}
	}
}

// Open that fails halfway gives back what it had.
func TestOpenLeavesNothingBehind(t *testing.T) {
	f := cudatest.Fake(t)
	for _, call := range []string{"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority", "cuCtxSetCurrent"} {
		f.Fail(call, 999)
		_, err := Open(0)
		f.Fail(call, 0)
		var e *Error
		if !errors.As(err, &e) || e.Code != 999 || !strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "cuda:0") {
			t.Errorf("%s failed, and Open says %v", call, err)
		}
		if live := f.Live(); len(live) > 0 {
			t.Errorf("%s failed, and Open left %v", call, live)
		}
	}
}

func TestHandlesOnOneGPUAreIndependent(t *testing.T) {
	f := cudatest.Fake(t)
	a, b := open(t, f), open(t, f)
	if a.Context() != b.Context() {
		t.Error("two contexts on one GPU")
	}
	alloc(t, a, 1000)
	if a.Held() != 1000 || b.Held() != 0 {
		t.Errorf("%d and %d bytes held", a.Held(), b.Held())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	alloc(t, b, 10) // the context is still there
	if _, err := a.Alloc(10); err == nil {
		t.Error("a closed handle allocates")
	}
}

func TestCloseReleasesWhatIsLeft(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f) // checks in the end
	s := stream(t, d, "left")
	function(t, d, "add")
	alloc(t, d, 100)
	if _, err := d.AllocHost(100); err != nil {
		t.Fatal(err)
	}
	p, err := d.NewPool(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc(s, 100); err != nil {
		t.Fatal(err)
	}
	held := s.Record()
	for _, kind := range []string{"contexts", "streams", "events", "modules", "pools", "memory", "pinned"} {
		if f.Live()[kind] == 0 {
			t.Errorf("the test makes no %s", kind)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := held.Sync(deadline(t)); err != nil && !strings.Contains(err.Error(), "cuda:0") {
		t.Error(err)
	}
}

// Each call finds the context of its own device, whichever goroutine makes it on
// whichever thread. The fake refuses a call with another device's context.
func TestEveryGoroutineHasTheRightContext(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	d0 := open(t, f)
	d1, err := Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer d1.Close()
	var wg sync.WaitGroup
	for i := range 32 {
		d := []*Device{d0, d1}[i%2]
		s := stream(t, d, "s")
		add := function(t, d, "add")
		wg.Go(func() {
			args := struct{ A, B, C, D, E uint64 }{A: uint64(i)}
			for range 50 {
				b, err := d.Alloc(64)
				if err != nil {
					t.Error(err)
					return
				}
				s.Fill32(b, 7)
				Launch(s, add, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 32}}, &args)
				runtime.Gosched()
				if err := s.Synchronize(deadline(t)); err != nil {
					t.Error(err)
				}
				if err := d.Free(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := f.Launches(); n != 32*50 {
		t.Errorf("%d launches", n)
	}
}

func TestBind(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	d := open(t, f)
	unbind := d.Bind()
	inner := d.Bind()
	inner()
	unbind()
	f.Fail("cuCtxSetCurrent", 201)
	defer f.Fail("cuCtxSetCurrent", 0)
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "cuCtxSetCurrent: invalid device context") {
			t.Errorf("Bind without a context: %v", text)
		}
	}()
	d.Bind()
}
