// Package nvrtctest tests CUDA sources with NVRTC, which needs no GPU.
package nvrtctest

import (
	"bytes"
	"debug/elf"
	"regexp"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

var frame = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill`)

// Compile checks that a source has the kernels for every kind of card, that they keep
// what they work on in registers, and that the compiler has nothing to say. Without NVRTC it skips.
func Compile(t *testing.T, name, text string, kernels []string) {
	t.Helper()
	c, err := nvrtc.Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		cubin, log, err := c.Compile(name, text, arch, "--ptxas-options=-v")
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
		for _, k := range kernels {
			if !there[k] {
				t.Errorf("%s: there is no kernel %s", arch, k)
			}
		}
		if strings.Contains(log, "warning") {
			t.Errorf("%s: the compiler warns:\n%s", arch, log)
		}
		frames := frame.FindAllStringSubmatch(log, -1)
		for _, f := range frames {
			if f[1] != "0" || f[2] != "0" {
				t.Errorf("%s: a kernel of %s uses local memory: %s", arch, name, f[0])
			}
		}
		if len(frames) < len(kernels) {
			t.Errorf("%s: the compiler tells of %d kernels, want %d:\n%s", arch, len(frames), len(kernels), log)
		}
	}
}
