package train

import (
	"math"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// Half of what the GPUs could make in the time is a utilisation of one half. Of a GPU
// that nobody knows there is none, and the summary does not speak of it.
func TestUtilisation(t *testing.T) {
	cudatest.Fake(t)
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	groups, err := comm.Local(1)
	if err != nil {
		t.Fatal(err)
	}
	defer groups[0].Close()
	j := &job{cfg: parse(t), group: groups[0], machine: &machine{gpu: dev}, arch: &architecture{}}
	const peak = 1e15
	j.arch.flops = peak / float64(j.share().Batch()*j.cfg.Data.SeqLen)
	if got := j.utilisation(peak, 2); math.Abs(got-0.5) > 1e-12 {
		t.Errorf("got %v, want 0.5", got)
	}
	if got := j.mfu(2); got != 0 {
		t.Errorf("%s is known to make use of %v of its peak", dev.Name(), got)
	}
	r := endRecord{TokensPerS: 5, StepMS: 7}
	if got := r.speed(); got != "5 tokens/s, 7.0 ms a step" {
		t.Errorf("got %q", got)
	}
	r.MFU = 0.456
	if got := r.speed(); got != "5 tokens/s, 7.0 ms a step, 45.6 % of the GPUs' peak (MFU)" {
		t.Errorf("got %q", got)
	}
}
