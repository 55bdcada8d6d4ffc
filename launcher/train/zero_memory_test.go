package train

import (
	"fmt"
	"math"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
)

// The plan of a large model for two GPUs is what the formulas of the stages give: with
// psi elements on n ranks, 2 bytes of a weight, 12 of masters and moments, and of
// gradients 4 in a shard. Buffers come on top: of two buckets. Both settings of its
// file fit GPUs of 139 GiB, and leave 10 GiB to libraries and their kernels.
func TestTheLargeModelFitsTwoGPUs(t *testing.T) {
	for _, batch := range []int{2, 4} {
		cfg, err := config.Load("../../configs/qwen2.5-7b-bench.yaml", []string{"train.device=cuda", fmt.Sprint("train.micro_batch=", batch)})
		if err != nil {
			t.Fatal(err)
		}
		a, err := describe(cfg, 2, planDevice)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		if err := a.spread(2); err != nil {
			t.Fatal(err)
		}
		all, _ := a.sizes()
		psi, n := float64(all), 2.0
		rows, sum := a.bytes()
		got := map[string]float64{}
		for _, r := range rows {
			got[r.name] = float64(r.bytes)
		}
		for name, want := range map[string]float64{"weights": 2 * psi, "gradients": 4 * psi / n, "master weights": 4 * psi / n, "AdamW moments": 8 * psi / n} {
			if !(math.Abs(got[name]-want) <= 0.02*want) {
				t.Errorf("%s take %.0f bytes, the formula gives %.0f", name, got[name], want)
			}
		}
		largest := 2 * float64(cfg.Model.Vocab*cfg.Model.Hidden)
		if b := got["buffers of gradients and weights"]; !(b <= 2.01*largest) || b < largest {
			t.Errorf("buffers take %.0f bytes, the largest bucket %.0f", b, largest)
		}
		if limit := int64(129 << 30); sum > limit {
			t.Errorf("with %d sequences a GPU holds %s, more than %s", batch, byteCount(sum), byteCount(limit))
		}
		t.Logf("%d sequences: %s, of which weights, gradients and the optimizer's state %s", batch, byteCount(sum), byteCount(a.shards.Memory().Total()))
		sent := a.shards.Sent(cfg.Train.GradAccum)
		if want := (4*2 + 2) * psi / 2; !(math.Abs(float64(sent.Total())-want) <= 0.02*want) {
			t.Errorf("a step sends %d bytes, the formula gives %.0f", sent.Total(), want)
		}
	}
}
