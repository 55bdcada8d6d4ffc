package dma

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc/nvrtctest"
)

// Every kernel is there for every kind of card, and keeps what it works on in registers.
func TestKernelsCompile(t *testing.T) {
	nvrtctest.Compile(t, "sum.cu", text, []string{"sum_f32", "sum_bf16", "sum_f16"})
	nvrtctest.Compile(t, "exchange.cu", exchangeText, kernelNames())
	nvrtctest.Compile(t, "pairs.cu", pairsText, []string{"pairs"})
}
