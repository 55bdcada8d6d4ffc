package train

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// A pretrained model is fine-tuned to the same losses on one rank, on two, and on two
// with accumulation; and the folder that it leaves trains on where the run has ended.
func TestStoriesAreFineTunedAlikeOnAnyRanks(t *testing.T) {
	model := filepath.Dir(testenv.Data(t, "stories260K/config.json"))
	text := testenv.Data(t, "text/tinystories_sample.txt")
	const steps = 50
	// The shape is the folder's.
	plain := []string{
		"model.arch=llama", "model.layers=5", "model.hidden=64", "model.heads=8", "model.kv_heads=4", "model.vocab=512",
		"data.format=text", "data.train=" + text, "data.seq_len=64", "data.cache=" + t.TempDir(), "checkpoint.every=0", "eval.every=0",
		"train.lr=1e-3", "train.schedule=constant", "train.warmup_steps=0",
	}
	train := func(from string, n, micro, accumulate, most int) (losses []float64, export string) {
		out := t.TempDir()
		mustTrain(t, n, append(plain, "model.path="+from, "output="+out, "checkpoint.export=true", fmt.Sprint("train.max_steps=", most),
			fmt.Sprint("train.micro_batch=", micro), fmt.Sprint("train.grad_accum=", accumulate))...)
		for _, r := range readSteps(t, out) {
			losses = append(losses, float64(r.Loss))
		}
		return losses, filepath.Join(out, "export")
	}
	want, export := train(model, 1, 4, 1, steps)
	if len(want) != steps || !(want[steps-1] < want[0]-0.5) {
		t.Fatalf("%d steps, whose loss goes from %v to %v", len(want), want[0], want[len(want)-1])
	}
	for _, c := range []struct{ n, micro, accumulate int }{{2, 2, 1}, {2, 1, 2}} {
		got, _ := train(model, c.n, c.micro, c.accumulate, steps)
		for i, w := range want {
			if !(math.Abs(got[i]-w) <= 2e-4*w) {
				t.Errorf("%d ranks, %d micro-steps: the loss of step %d is %v, want %v", c.n, c.accumulate, i+1, got[i], w)
				break
			}
		}
	}
	// The first step sees the same sequences as the first run's first step did, of which
	// the model has learned since.
	again, _ := train(export, 1, 4, 1, 1)
	if !(again[0] < want[0]-0.5) {
		t.Errorf("the exported model begins at a loss of %v; the run began at %v and ended at %v", again[0], want[0], want[steps-1])
	}
}

// A sample that the model has no room for is refused before training.
func TestSamplesThatDoNotFit(t *testing.T) {
	model := filepath.Dir(testenv.Data(t, "stories260K/config.json"))
	text := testenv.Data(t, "text/tinystories_sample.txt")
	run := []string{"model.path=" + model, "model.arch=llama", "model.layers=5", "model.hidden=64", "model.heads=8", "model.kv_heads=4",
		"model.vocab=512", "data.format=text", "data.train=" + text, "data.cache=" + t.TempDir(), "eval.every=0",
		"train.max_steps=2", "train.micro_batch=1", "sample.every=2", "sample.prompt=Once", "output=" + t.TempDir()}
	said, err := trainRanks(t, t.Context(), 1, append(run, "sample.tokens=511")...)
	if err == nil || !strings.Contains(err.Error(), "sample.tokens: 511 behind a prompt of") || strings.Contains(said, "a step:") {
		t.Errorf("%v, having said %q", err, said)
	}
	mustTrain(t, 1, append(run, "sample.tokens=4")...)
}
