package cpu_test

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

var _ models.Ops = (*cpu.Ops)(nil)

func TestBackendsByName(t *testing.T) {
	for _, name := range append(gemm.Names(), "auto", "") {
		ops, err := cpu.New(2, cpu.Options{GEMM: name})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if got := ops.Backend(); name != "" && name != "auto" && !strings.HasPrefix(got, name) {
			t.Errorf("asked for %q, got %q", name, got)
		}
		if ops.Threads() != 2 {
			t.Errorf("%d threads", ops.Threads())
		}
		ops.Close()
		ops.Close() // a second time does nothing
	}
	if _, err := cpu.New(1, cpu.Options{GEMM: "mkl"}); err == nil || !strings.Contains(err.Error(), `"mkl"`) {
		t.Errorf("error %v", err)
	}
}

// Two streams may use the same operations at the same time.
func TestStreamsShareOps(t *testing.T) {
	ops, err := cpu.New(2, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ops.Close)
	s1, s2 := kerntest.Stream(t), kerntest.Stream(t)
	r := kerntest.Rand(1)
	x, w := kerntest.Normal(r, 1, 70, 40), kerntest.Normal(r, 1, 50, 40)
	qkv := kerntest.Normal(r, 1, 1, 70, 8, 8)
	y1, y2, o1, o2, lse := kerntest.New(70, 50), kerntest.New(70, 50), kerntest.New(1, 70, 4, 8), kerntest.New(1, 70, 4, 8), kerntest.New(1, 4, 70)
	for range 50 {
		ops.Linear(s1, y1, x, w, kerntest.Of(w.F32()[:50], 50), tensor.Tensor{})
		ops.Attention(s1, o1, lse, qkv, tensor.Tensor{})
		ops.Linear(s2, y2, x, w, kerntest.Of(w.F32()[:50], 50), tensor.Tensor{})
	}
	kerntest.Wait(t, s1)
	kerntest.Wait(t, s2)
	ops.Attention(s2, o2, lse, qkv, tensor.Tensor{})
	kerntest.Wait(t, s2)
	kerntest.Equal(t, "linear on two streams", y1, y2)
	kerntest.Equal(t, "attention on two streams", o1, o2)
}
