package arith

import (
	"bytes"
	"debug/elf"
	"fmt"
	"regexp"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Every kernel is there for every kind of card, and keeps what it works on in
// registers.
func TestKernelsCompile(t *testing.T) {
	c, err := nvrtc.Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	want := []string{"checksum"}
	for _, to := range types {
		for _, from := range types {
			want = append(want, fmt.Sprintf("convert_%s_%s", to, from), fmt.Sprintf("add_%s_%s", to, from))
		}
	}
	frame := regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill`)
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		cubin, log, err := c.Compile("arith.cu", text, arch, "--ptxas-options=-v")
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
		for _, name := range want {
			if !there[name] {
				t.Errorf("%s: there is no kernel %s", arch, name)
			}
		}
		frames := frame.FindAllStringSubmatch(log, -1)
		for _, f := range frames {
			if f[1] != "0" || f[2] != "0" {
				t.Errorf("%s: a kernel uses local memory: %s", arch, f[0])
			}
		}
		if len(frames) < len(want) {
			t.Errorf("%s: the compiler tells of %d kernels, want %d:\n%s", arch, len(frames), len(want), log)
		}
	}
}
