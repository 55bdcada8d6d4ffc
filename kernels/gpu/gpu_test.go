package gpu_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/gpu"
	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

var _ models.Ops = (*gpu.Ops)(nil)

// fakes is a GPU that runs no kernels, and a cuBLASLt on it; kernels are compiled
// by the real NVRTC.
func fakes(t *testing.T) (*cudatest.Driver, *cuda.Device) {
	t.Helper()
	if _, err := nvrtc.Load(); err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	driver := cudatest.Fake(t)
	fakelt.Fake(t)
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	return driver, dev
}

// Every kernel that an operation launches is in the compiled code, takes as many
// bytes of arguments as the host hands it, and has a grid: the fake driver reads
// the real compiler's output, and a launch that does not fit fails the stream.
func TestEveryOperationLaunches(t *testing.T) {
	driver, dev := fakes(t)
	ops, err := gpu.New(dev, gpu.Options{Attention: "native"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	var held []device.Buffer
	of := func(dt dtype.DType, shape ...int) tensor.Tensor {
		x, err := tensor.Alloc(dev, dt, shape...)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, x.Buf)
		return x
	}
	half := func(shape ...int) tensor.Tensor { return of(dtype.BF16, shape...) }
	f32 := func(shape ...int) tensor.Tensor { return of(dtype.F32, shape...) }
	ids := func(shape ...int) tensor.Tensor { return of(dtype.I32, shape...) }
	one := of(dtype.F64, 1)
	const B, T, H, K, D, V = 2, 32, 4, 2, 64, 100
	const E, N, C, F = H + 2*K, B * T, H * D, 128
	var none tensor.Tensor
	for _, op := range []struct {
		name string
		run  func()
	}{
		{"Linear", func() { ops.Linear(s, half(N, F), half(N, C), half(F, C), half(F), half(N, F)) }},
		{"LinearBackwardX", func() { ops.LinearBackwardX(s, half(N, C), half(N, F), half(F, C), true) }},
		{"LinearBackwardW", func() { ops.LinearBackwardW(s, f32(F, C), half(N, F), half(N, C), true) }},
		{"BiasBackward", func() { ops.BiasBackward(s, f32(F), half(N, F), false) }},
		{"RMSNorm", func() { ops.RMSNorm(s, half(N, C), f32(N), half(N, C), half(C), 1e-6) }},
		{"RMSNormBackward", func() {
			ops.RMSNormBackward(s, half(N, C), f32(C), half(N, C), half(N, C), half(C), f32(N), true, false)
		}},
		{"LayerNorm", func() { ops.LayerNorm(s, half(N, C), f32(N), f32(N), half(N, C), half(C), half(C), 1e-6) }},
		{"LayerNormBackward", func() {
			ops.LayerNormBackward(s, half(N, C), half(C), half(C), half(N, C), half(N, C), half(C), f32(N), f32(N), false, true)
		}},
		{"QKNorm", func() { ops.QKNorm(s, half(N, E, D), half(N, E, D), half(D), half(D), H, 1e-6) }},
		{"QKNormBackward", func() {
			ops.QKNormBackward(s, half(N, E, D), f32(D), half(D), half(N, E, D), half(D), half(D), H, 1e-6, true, false)
		}},
		{"QKNorm of odd heads", func() { ops.QKNorm(s, half(N, E, 6), half(N, E, 6), half(6), half(6), H, 1e-6) }},
		{"RoPE", func() { ops.RoPE(s, half(B, T, E, D), f32(T, D/2), f32(T, D/2), H+K, 0, false) }},
		{"RoPE of odd heads", func() { ops.RoPE(s, half(B, T, E, 6), f32(T, 3), f32(T, 3), H+K, 0, true) }},
		{"Attention", func() { ops.Attention(s, half(B, T, H, D), f32(B, H, T), half(B, T, E, D), none) }},
		{"Attention in documents", func() { ops.Attention(s, half(B, T, H, D), f32(B, H, T), half(B, T, E, D), ids(B, T)) }},
		{"AttentionBackward", func() {
			ops.AttentionBackward(s, half(B, T, E, D), half(B, T, H, D), half(B, T, H, D), f32(B, H, T), half(B, T, E, D), none)
		}},
		{"AttentionNext", func() { ops.AttentionNext(s, half(1, 2, H, D), half(T, K, D), half(T, K, D), half(1, 2, E, D), 3) }},
		{"SwiGLU", func() { ops.SwiGLU(s, half(N, F), half(N, 2*F)) }},
		{"SwiGLUBackward", func() { ops.SwiGLUBackward(s, half(N, 2*F), half(N, F), half(N, 2*F)) }},
		{"GELU", func() { ops.GELU(s, half(N, F), half(N, F)) }},
		{"GELUBackward", func() { ops.GELUBackward(s, half(N, F), half(N, F), half(N, F)) }},
		{"Embed", func() { ops.Embed(s, half(N, C), half(V, C), ids(N)) }},
		{"Embed of odd rows", func() { ops.Embed(s, half(N, 3), half(V, 3), ids(N)) }},
		{"EmbedBackward", func() { ops.EmbedBackward(s, f32(V, C), half(N, C), ids(N), false) }},
		{"Positions", func() { ops.Positions(s, half(B, T, C), half(2*T, C), 3) }},
		{"PositionsBackward", func() { ops.PositionsBackward(s, f32(2*T, C), half(B, T, C), true) }},
		{"CrossEntropy", func() { ops.CrossEntropy(s, f32(N), half(N, V), ids(N), 1, true) }},
		{"CrossEntropy of a large vocabulary", func() { ops.CrossEntropy(s, f32(2), half(2, 151936), ids(2), 1, true) }},
		{"Sum", func() { ops.Sum(s, one, f32(N), false) }},
		{"SumSquares", func() { ops.SumSquares(s, one, half(N, C), true) }},
		{"Copy", func() { ops.Copy(s, half(N, C), f32(N, C)) }},
		{"Dropout", func() { ops.Dropout(s, half(N, C), half(N, C), 0.1, 1, 2, true) }},
		{"Dropout of odd rows", func() { ops.Dropout(s, half(N, 3), half(N, 3), 0.1, 1, 2, false) }},
		{"Spread", func() { ops.Spread(s, half(F, 8), half(F/2, 4), [][2]int{{0, F / 4}, {F / 2, 3 * F / 4}}, 2) }},
		{"Collect", func() { ops.Collect(s, half(F, 4), f32(F, 4), [][2]int{{0, F}}, 2, false) }},
		{"Collect to add", func() { ops.Collect(s, f32(F, 4), f32(F, 4), [][2]int{{0, F}}, 2, true) }},
		{"Clip", func() { ops.Clip(s, one, one, one, 1) }},
		{"AdamW", func() {
			slot := adamw.Slot{W: half(N, C), Master: f32(N, C), M: f32(N, C), V: f32(N, C), G: f32(N, C), Decay: true}
			ops.AdamW(s, []adamw.Slot{slot}, adamw.Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: 1, Scale: one})
		}},
	} {
		before := driver.Launches()
		op.run()
		if err := kerntest.Sync(s); err != nil {
			t.Fatalf("%s: %v", op.name, err)
		}
		// Products are launched by the library.
		if driver.Launches() == before && !strings.HasPrefix(op.name, "Linear") {
			t.Errorf("%s launched nothing", op.name)
		}
	}
	ops.Zero(s, half(N, C))
	if err := kerntest.Sync(s); err != nil {
		t.Fatalf("Zero: %v", err)
	}
	if err := errors.Join(s.Close(), ops.Close(), ops.Close()); err != nil {
		t.Error(err)
	}
	for _, b := range held {
		if err := dev.Free(b); err != nil {
			t.Error(err)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if live := driver.Live(); len(live) > 0 {
		t.Errorf("left behind: %v", live)
	}
}

// What cannot be had is an error that names it, and leaves nothing behind.
func TestNewSaysWhatIsMissing(t *testing.T) {
	driver, dev := fakes(t)
	if _, err := gpu.New(dev, gpu.Options{Attention: "flash"}); err == nil || !strings.Contains(err.Error(), `"flash"`) {
		t.Errorf("error %v", err)
	}
	driver.FailAfter("cuModuleLoadDataEx", 2, 2)
	if _, err := gpu.New(dev, gpu.Options{}); err == nil || !strings.Contains(err.Error(), "operations on cuda:0") || !strings.Contains(err.Error(), "cuModuleLoadDataEx") {
		t.Errorf("error %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if live := driver.Live(); len(live) > 0 {
		t.Errorf("left behind: %v", live)
	}
}

// On a real GPU the operations open, and say what they use.
func TestOpsOpenOnAGPU(t *testing.T) {
	dev := gputest.Device(t)
	ops, err := gpu.New(dev, gpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s; %s", dev.Name(), ops.Backend(), ops.Explain(8, 2048, 14, 2, 64))
	if err := ops.Close(); err != nil {
		t.Error(err)
	}
}
