package arith

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc/nvrtctest"
)

// Every kernel is there for every kind of card, and keeps what it works on in
// registers.
func TestKernelsCompile(t *testing.T) {
	want := []string{"checksum"}
	for _, to := range types {
		for _, from := range types {
			want = append(want, fmt.Sprintf("convert_%s_%s", to, from), fmt.Sprintf("add_%s_%s", to, from))
		}
	}
	nvrtctest.Compile(t, "arith.cu", text, want)
}
