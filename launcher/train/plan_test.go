package train

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// A plan for GPUs is held against those that are here, and told why there are none.
func TestAPlanForGPUsIsHeldAgainstThisHosts(t *testing.T) {
	for _, c := range []struct {
		name         string
		machine      cudatest.Machine
		ranks        int
		sets         []string
		line, refuse string // of the text and the error; "" is none
	}{
		{"as many", cudatest.Machine{GPUs: 2}, 2, nil, "\ncuda:0 (Fake GPU) has ", ""},
		{"too few", cudatest.Machine{GPUs: 2}, 4, nil, "", "train.device cuda: this host has 4 ranks and shows 2 GPUs (give --nproc 2)"},
		{"too old", cudatest.Machine{GPUs: 2, Compute: 75}, 2, nil, "", "train.device cuda: cuda:1 has compute capability 7.5, and 8.0 is needed"},
		{"too small", cudatest.Machine{Memory: 1 << 28}, 1, []string{"model.hidden=1024", "model.heads=16"}, "\ncuda:0 (Fake GPU) has ", "memory: a rank needs "},
		{"none", cudatest.Machine{GPUs: -1}, 4, nil, "\nno GPU is visible here to compare that with: cuInit: no CUDA-capable device", ""},
		{"an old driver", cudatest.Machine{Version: 11040}, 4, nil, "\nno GPU is visible here to compare that with: ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cudatest.FakeOf(t, c.machine)
			text, err := Plan(parse(t, append(c.sets, "train.device=cuda", "train.threads=0")...), c.ranks, c.ranks)
			if !strings.Contains(text, "\nmemory of a rank, on a GPU") || !strings.Contains(text, "\nbucket plan ") || !strings.Contains(text, c.line) {
				t.Errorf("%q is not in\n%s", c.line, text)
			}
			if (err != nil) != (c.refuse != "") || err != nil && !strings.HasPrefix(err.Error(), c.refuse) {
				t.Errorf("refused with %v, want %q", err, c.refuse)
			}
		})
	}
}
