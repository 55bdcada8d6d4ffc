package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
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
			e.add(evaluated{Step: i + 1, Loss: status.Float(loss)}, c.delta)
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
	e.add(evaluated{Step: 0, Loss: 2}, 0)
	if e.add(evaluated{Step: 1, Loss: 3}, 0); e.Best == nil || e.Best.Step != 1 || e.Mark.Step != 0 || e.Stale != 1 {
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

// No loss is lower by 100 than the first, so that patience ends the job: on all ranks
// behind the same step, with a checkpoint, a model folder and no error. To go on, it
// takes more patience, and a job that was killed before it came so far ends there too.
func TestPatienceEndsTheJob(t *testing.T) {
	for _, c := range []struct {
		strategy string
		ranks    int
	}{{"ddp", 1}, {"ddp", 3}, {"zero3", 2}} {
		dir := t.TempDir()
		sets := on(c.strategy, c.ranks, "output="+dir, "train.max_steps=12", "train.schedule=constant", "eval.every=1", "eval.min_delta=100", "checkpoint.every=1", "checkpoint.keep=0", "checkpoint.export=true", "log.every=2")
		done := make([]int, c.ranks)
		said, errs := trainChanged(t, c.ranks, func(*job) {}, func(j *job) { done[j.rank()] = j.done }, append(sets, "eval.patience=2")...)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		r := readEnd(t, dir)
		if slices.Max(done) != 3 || slices.Min(done) != 3 || r.Step != 3 || r.StoppedEarly != "" || !strings.Contains(r.EndedEarly, "eval.patience is 2") {
			t.Errorf("%+v: the ranks made %v steps, the record is %+v", c, done, r)
		}
		if !strings.Contains(said, "done early: no evaluation since has improved on the loss") || !strings.Contains(said, "of step 1, eval.patience is 2") || strings.Contains(said, "to go on") {
			t.Errorf("%+v: said %s", c, said)
		}
		if !exists(filepath.Join(dir, "export", "config.json")) || !slices.Equal(saved(t, dir), []int64{1, 2, 3}) {
			t.Errorf("%+v: checkpoints %v, and no model folder", c, saved(t, dir))
		}
		// The last step has a line, as every last step.
		if steps := readSteps(t, dir); len(steps) != 2 || steps[1].Step != 3 {
			t.Errorf("%+v: lines %+v", c, steps)
		}
		evals := readEvals(t, dir)
		if last := evals[len(evals)-1]; len(evals) != 3 || last.Step != 3 || r.ValLoss == nil || *r.ValLoss != last.ValLoss || *r.Perplexity != last.Perplexity ||
			!(math.Abs(float64(last.Perplexity)-math.Exp(float64(last.ValLoss))) <= 1e-12*float64(last.Perplexity)) {
			t.Errorf("%+v: evaluations %+v, at the end %+v", c, evals, r)
		}
		if want := fmt.Sprintf("evaluation after step 3: loss %.4f nats a token, perplexity %.2f", float64(evals[2].ValLoss), float64(evals[2].Perplexity)); !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
		again := append(sets, "checkpoint.resume=auto")
		if said := mustTrain(t, c.ranks, append(again, "eval.patience=2")...); !strings.Contains(said, "nothing to do: training ended early at step 3 of 12") {
			t.Errorf("%+v: going on: said %s", c, said)
		}
		if err := os.RemoveAll(filepath.Join(dir, "checkpoints", "step-00000003")); err != nil {
			t.Fatal(err)
		}
		if mustTrain(t, c.ranks, append(again, "eval.patience=2")...); readEnd(t, dir).Step != 3 {
			t.Errorf("%+v: a job that was killed ends behind step %d", c, readEnd(t, dir).Step)
		}
		if mustTrain(t, c.ranks, append(again, "eval.patience=4")...); readEnd(t, dir).Step != 5 {
			t.Errorf("%+v: with more patience it ends behind step %d", c, readEnd(t, dir).Step)
		}
		// Another evaluation begins anew: steps 6 and 7 to 8.
		if mustTrain(t, c.ranks, append(again, "eval.patience=2", "eval.steps=2")...); readEnd(t, dir).Step != 8 {
			t.Errorf("%+v: on other data it ends behind step %d", c, readEnd(t, dir).Step)
		}
	}
}

// overfitting is the settings of a job that learns a short text by heart: the loss on
// another falls first, and then rises.
func overfitting(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	for name, n := range map[string]int{"train": 34, "eval": 260} {
		r, text := models.NewRand(1, name), make([]byte, n)
		for i := range text {
			text[i] = "abcdefghijklm"[r.Uint64(uint64(i))%13]
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return []string{
		"data.format=text", "data.train=" + dir + "/train", "data.eval=" + dir + "/eval", "model.vocab=256", "train.micro_batch=2", "train.warmup_steps=0",
		"train.schedule=constant", "train.max_steps=16", "train.lr=2e-2", "eval.every=2", "eval.steps=0", "checkpoint.every=5", "checkpoint.best=true", "checkpoint.export=true", "checkpoint.keep=1",
	}
}

// lowest is the evaluation with the lowest loss.
func lowest(t *testing.T, output string) evalRecord {
	t.Helper()
	evals := readEvals(t, output)
	return slices.MinFunc(evals, func(a, b evalRecord) int {
		if a.ValLoss < b.ValLoss {
			return -1
		}
		return 1
	})
}

// The best checkpoint is kept, named, and made into the model folder. It is neither the
// first nor the last here, nor one that checkpoint.every would have saved.
func TestTheBestCheckpointIsExported(t *testing.T) {
	job := overfitting(t)
	for _, ranks := range []int{1, 2} {
		dir := t.TempDir()
		sets := append(job, "output="+dir, fmt.Sprint("train.micro_batch=", 2/ranks), "eval.at_start=true")
		there := map[int][]int64{} // when the checkpoint of a step was published
		hold(t, func(rank, step int, what string) {
			if what == "published" {
				there[step] = saved(t, dir)
			}
		})
		said := mustTrain(t, ranks, sets...)
		evals, best := readEvals(t, dir), lowest(t, dir)
		if best.Step < 4 || best.Step > 12 || best.Step%5 == 0 || evals[0].Step != 0 || len(evals) != 9 {
			t.Fatalf("the evaluations show nothing: %+v", evals)
		}
		path := filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%08d", best.Step))
		if !strings.Contains(said, fmt.Sprintf("%s, validation loss %.4f", path, float64(best.ValLoss))) || readEnd(t, dir).Best != path {
			t.Errorf("%s is not named: said %s", path, said)
		}
		// Whenever the job is killed, the best of the steps before is there.
		for step, steps := range there {
			so := evalRecord{ValLoss: status.Float(math.Inf(1))}
			for _, e := range evals[1:] {
				if e.Step < step && e.ValLoss < so.ValLoss {
					so = e
				}
			}
			if so.Step > 0 && !slices.Contains(steps, int64(so.Step)) {
				t.Errorf("when step %d was saved, there were %v, and the best was step %d", step, steps, so.Step)
			}
		}
		if len(there) < 5 {
			t.Errorf("only %v was saved", there)
		}
		if got := saved(t, dir); !slices.Equal(got, []int64{int64(best.Step), 16}) {
			t.Errorf("the checkpoints are %v", got)
		}
		got, want := folderWeights(t, filepath.Join(dir, "export")), weights(t, dir, best.Step)
		for name, v := range got {
			if !slices.Equal(v, asFloats(want[name])) {
				t.Errorf("the model folder's %s is not that of step %d", name, best.Step)
			}
		}
		// Which it is does not hang on what stands beside the checkpoints.
		if err := os.Remove(filepath.Join(dir, "metrics.jsonl")); err != nil {
			t.Fatal(err)
		}
		mustTrain(t, ranks, append(sets, "checkpoint.resume=auto", "train.max_steps=18")...)
		if again := readEnd(t, dir); again.Best != path || again.Step != 18 {
			t.Errorf("going on, the best is %s of %d steps, want %s", again.Best, again.Step, path)
		}
		if got := saved(t, dir); !slices.Equal(got, []int64{int64(best.Step), 18}) {
			t.Errorf("going on, the checkpoints are %v", got)
		}
	}
}
