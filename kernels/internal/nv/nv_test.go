package nv_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

func newEnv(t *testing.T, m cudatest.Machine) (*cudatest.Driver, *nv.Env) {
	driver := cudatest.FakeOf(t, m)
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return driver, nv.NewEnv(dev)
}

// What a stream may still use is not freed when more is asked for.
func TestScratchGrowsAndKeepsTheOld(t *testing.T) {
	driver, env := newEnv(t, cudatest.Machine{})
	scratch := func(user string, n int) device.Buffer {
		b, err := env.Scratch(user, n)
		if err != nil {
			t.Fatal(err)
		}
		if b.Len() < n {
			t.Fatalf("%d bytes of scratch memory, want %d", b.Len(), n)
		}
		return b
	}
	a := scratch("a", 1000)
	if again := scratch("a", 900); again.Addr() != a.Addr() {
		t.Error("less scratch memory is other memory")
	}
	if b := scratch("b", 1000); b.Addr() == a.Addr() {
		t.Error("two users have the same scratch memory")
	}
	if held := driver.Live()["memory"]; held != 2 || env.Device.Held() != 2000 {
		t.Errorf("%d pieces of %d bytes, want 2 of 2000", held, env.Device.Held())
	}
	grown := scratch("a", 1001)
	if grown.Len() < 1500 || driver.Live()["memory"] != 3 || env.Device.Held() != int64(2000+grown.Len()) {
		t.Errorf("grown to %d bytes, %d pieces of %d bytes", grown.Len(), driver.Live()["memory"], env.Device.Held())
	}
	if _, err := env.AllocHost(64); err != nil {
		t.Error(err)
	}
	own, err := env.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Free(own); err != nil || env.Device.Held() != int64(2000+grown.Len()) {
		t.Errorf("Free: %v, %d bytes left", err, env.Device.Held())
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	if live := driver.Live(); live["memory"] != 0 || live["pinned"] != 0 || env.Device.Held() != 0 {
		t.Errorf("after Close: %v, %d bytes", live, env.Device.Held())
	}
}

func TestScratchTellsWhoWantedTooMuch(t *testing.T) {
	_, env := newEnv(t, cudatest.Machine{Memory: 1 << 20})
	_, err := env.Scratch("head", 2<<20)
	var full *cuda.OutOfMemoryError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "scratch memory of head") {
		t.Errorf("error %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}

// Lines in the compiler's messages are those of the kernels' own file, and what a
// module lacks is an error that names it.
func TestLoadNamesWhatIsWrong(t *testing.T) {
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	driver, env := newEnv(t, cudatest.Machine{})
	var f, missing *cuda.Function
	const good = "extern \"C\" __global__ void kernel(float* x) { *x = warpSum(*x); }\n"
	if err := env.Load("good.cu", good, nv.Kernels{"kernel": &f}); err != nil || f == nil {
		t.Errorf("good.cu: %v", err)
	}
	if err := env.Load("good.cu", good, nv.Kernels{"other": &missing}); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a kernel that is not there: %v", err)
	}
	if err := env.Load("bad.cu", "\n\nnonsense;\n", nil); err == nil || !strings.Contains(err.Error(), "bad.cu(3)") {
		t.Errorf("bad.cu: %v", err)
	}
	blocks, err := env.Resident(f, 256)
	if err != nil || blocks != 8*env.SMs {
		t.Errorf("%d resident blocks, %v", blocks, err)
	}
	if err := env.Close(); err != nil || driver.Live()["modules"] != 0 {
		t.Errorf("Close: %v, %d modules live", err, driver.Live()["modules"])
	}
}

func TestAlignedFlagAndStream(t *testing.T) {
	at := func(addr uintptr) tensor.Tensor { return tensor.New(device.At(addr, 4), dtype.F32, 1) }
	if !nv.Aligned(16, at(32), tensor.Tensor{}, at(16)) || nv.Aligned(16, at(32), at(24)) {
		t.Error("Aligned is wrong")
	}
	if nv.Flag(false) != 0 || nv.Flag(true) != 1 {
		t.Error("Flag is wrong")
	}
	kerntest.Panics(t, func() { nv.Stream(kerntest.Stream(t)) }, "a stream of cpu", "CUDA stream")
}
