package train

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
)

// A run that goes on with other settings says which, and from where the learning rate
// goes on; one with the same says nothing of the kind.
func TestChangedSettingsAreRemarkedUpon(t *testing.T) {
	dir := t.TempDir()
	set := []string{"output=" + dir, "train.schedule=linear", "train.warmup_steps=0", "checkpoint.best=false"}
	mustTrain(t, 1, append(set, "train.max_steps=4", "checkpoint.keep=0")...)
	from := "checkpoint.resume=" + filepath.Join(dir, "checkpoints", "step-00000002")
	for _, c := range []struct {
		sets         []string
		want, absent string
	}{
		{[]string{"train.max_steps=4"}, "going on from", "not the checkpoint's"},
		// Under the checkpoint's settings, step 3 has half of 1e-2.
		{[]string{"train.max_steps=4", "train.lr=1e-3"}, "settings that are not the checkpoint's: train.lr is 0.001, was 0.01. The learning rate goes on as if they had been so from the start: step 3 has 0.0005, and would have had 0.005", "max_steps is"},
		{[]string{"train.max_steps=8"}, "train.max_steps is 8, was 4. The learning rate goes on as if they had been so from the start: step 3 has 0.0075, and would have had 0.005", "train.lr is"},
		{[]string{"train.max_steps=4", "train.weight_decay=0"}, "settings that are not the checkpoint's: train.weight_decay is 0, was 0.1", "The learning rate goes on"},
	} {
		said := mustTrain(t, 1, append(append(slices.Clone(set), "output="+t.TempDir(), from), c.sets...)...)
		if !strings.Contains(said, c.want) || strings.Contains(said, c.absent) {
			t.Errorf("%v: said %s", c.sets, said)
		}
	}
}

// Every setting of section train that is no matter of hardware or of the global batch
// is in the list, or in a job's identity.
func TestOptimizationHasAllSettings(t *testing.T) {
	cfg := parse(t)
	var other []string
	for _, s := range cfg.Settings() {
		same := slices.ContainsFunc(cfg.Identity(1), func(x config.Setting) bool { return x.Key == s.Key })
		if strings.HasPrefix(s.Key, "train.") && !slices.Contains(optimization, s.Key) && !same {
			other = append(other, strings.TrimPrefix(s.Key, "train."))
		}
	}
	want := []string{"micro_batch", "grad_accum", "precision", "device", "threads", "matmul", "recompute", "skip_nonfinite"}
	if !slices.Equal(other, want) {
		t.Errorf("not remarked upon: %v, want %v", other, want)
	}
}
