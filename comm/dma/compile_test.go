package dma

import (
	"bytes"
	"debug/elf"
	"regexp"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Every kernel is there for every kind of card, and keeps what it works on in registers.
func TestKernelsCompile(t *testing.T) {
	c, err := nvrtc.Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	frame := regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill`)
	for _, source := range []struct {
		name, text string
		kernels    []string
	}{
		{"sum.cu", text, []string{"sum_f32", "sum_bf16", "sum_f16"}},
		{"exchange.cu", exchangeText, kernelNames()},
		{"pairs.cu", pairsText, []string{"pairs"}},
	} {
		for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
			cubin, log, err := c.Compile(source.name, source.text, arch, "--ptxas-options=-v")
			if err != nil {
				t.Errorf("%s: %v", arch, err)
				continue
			}
			file, err := elf.NewFile(bytes.NewReader(cubin))
			if err != nil {
				t.Fatal(err)
			}
			symbols, err := file.Symbols()
			if err != nil {
				t.Fatal(err)
			}
			there := map[string]bool{}
			for _, s := range symbols {
				there[s.Name] = true
			}
			for _, name := range source.kernels {
				if !there[name] {
					t.Errorf("%s: there is no kernel %s", arch, name)
				}
			}
			frames := frame.FindAllStringSubmatch(log, -1)
			for _, f := range frames {
				if f[1] != "0" || f[2] != "0" {
					t.Errorf("%s: a kernel of %s uses local memory: %s", arch, source.name, f[0])
				}
			}
			if len(frames) < len(source.kernels) {
				t.Errorf("%s: the compiler tells of %d kernels, want %d:\n%s", arch, len(frames), len(source.kernels), log)
			}
		}
	}
}
