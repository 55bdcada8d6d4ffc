package train

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// What counts as the best, and what as an improvement.
func TestEvaluations(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		delta  float64
		losses []float64 // of steps 1, 2, …
		best   int       // the step; 0: none
		stale  []int
	}{
		{0, []float64{3, 2, 2, 2.5, 1}, 5, []int{0, 0, 1, 2, 0}},
		{0, []float64{3, 3, 3}, 1, []int{0, 1, 2}},
		// Small steps add up: 2.9 and 2.8 are no improvement on 3, 2.7 is.
		{0.25, []float64{3, 2.9, 2.8, 2.7, 2.6}, 5, []int{0, 1, 2, 0, 1}},
		{0.5, []float64{3, 2.5}, 2, []int{0, 1}}, // by more than min_delta
		{0, []float64{nan, 4, nan, 3}, 4, []int{1, 0, 1, 0}},
		{0, []float64{nan, nan}, 0, []int{1, 2}},
		{0, []float64{math.Inf(1), 4}, 2, []int{0, 0}},
	} {
		var e evaluations
		for i, loss := range c.losses {
			e.add(evaluated{i + 1, status.Float(loss)}, c.delta)
			if e.Stale != c.stale[i] || e.Last.Step != i+1 {
				t.Errorf("%+v: step %d: %d evaluations without improvement, want %d", c, i+1, e.Stale, c.stale[i])
			}
		}
		if got := e.Best; (got == nil) != (c.best == 0) || got != nil && got.Step != c.best {
			t.Errorf("%+v: the best is %v", c, got)
		}
		// A checkpoint's metadata keeps all of it, NaN included.
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back evaluations
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(back); !bytes.Equal(again, text) {
			t.Errorf("%s is read as %s", text, again)
		}
	}
	// What the model was before the first step is something to improve on, and no
	// checkpoint.
	var e evaluations
	e.add(evaluated{0, 2}, 0)
	if e.add(evaluated{1, 3}, 0); e.Best == nil || e.Best.Step != 1 || e.Mark.Step != 0 || e.Stale != 1 {
		t.Errorf("got %+v", e)
	}
}

// readEvals reads the evaluation lines of a run's metrics.
func readEvals(t *testing.T, output string) (out []evalRecord) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"val_loss"`) && !strings.Contains(line, `"event"`) {
			var r evalRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			out = append(out, r)
		}
	}
	return out
}

// saved lists the steps of the checkpoints in an output folder.
func saved(t *testing.T, output string) (steps []int64) {
	t.Helper()
	refs, err := checkpoint.List(filepath.Join(output, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refs {
		steps = append(steps, r.Step)
	}
	return steps
}
