package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// small buckets, so that there are several, and cuts through parameters.
var small = []string{"parallel.first_bucket_mb=0.01", "parallel.bucket_cap_mb=0.02"}

// near compares steps; where exact is true, the losses bit by bit.
func near(t *testing.T, what string, want, got []stepRecord, exact bool) {
	t.Helper()
	if len(want) == 0 || len(want) != len(got) {
		t.Fatalf("%s: %d steps, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if exact && got[i].Loss != w.Loss {
			t.Errorf("%s: step %d: loss %v, want %v and no bit less", what, w.Step, got[i].Loss, w.Loss)
		}
		for name, v := range map[string][2]float64{
			"loss":          {float64(got[i].Loss), float64(w.Loss)},
			"gradient norm": {float64(got[i].GradNorm), float64(w.GradNorm)},
		} {
			if off := math.Abs(v[0]-v[1]) / v[1]; !(off <= 1e-5) {
				t.Errorf("%s: step %d: %s %v, want %v (off by %.1e)", what, w.Step, name, v[0], v[1], off)
			}
		}
	}
}

// Each stage trains as plain data parallelism does: bit by bit, where sums are made in
// the same order. That of the norm, which clips, is another, and stages 2 and 3 add up
// micro-steps behind the ranks.
func TestEveryStageTrainsAsDDPDoes(t *testing.T) {
	for _, split := range []struct {
		sets  []string
		exact bool
	}{
		{[]string{"train.micro_batch=4", "train.max_grad_norm=0"}, true},
		{[]string{"train.micro_batch=1", "train.grad_accum=4", "model.tie_embeddings=true"}, false},
	} {
		sets := append(append([]string{"train.max_steps=20", "eval.every=5"}, small...), split.sets...)
		plain := t.TempDir()
		mustTrain(t, 3, append(sets, "output="+plain)...)
		want, val := readSteps(t, plain), float64(*readEnd(t, plain).ValLoss)
		if !(want[19].Loss < want[0].Loss-0.1) {
			t.Fatalf("the loss went from %v to %v: nothing was learned", want[0].Loss, want[19].Loss)
		}
		for stage := 1; stage <= 3; stage++ {
			dir, strategy := t.TempDir(), fmt.Sprint("zero", stage)
			said := mustTrain(t, 3, append(sets, "output="+dir, "parallel.strategy="+strategy)...)
			if !strings.Contains(said, fmt.Sprintf("shards: ZeRO stage %d: ", stage)) {
				t.Errorf("%s said %s", strategy, said)
			}
			near(t, fmt.Sprint(strategy, split.sets), want, readSteps(t, dir), split.exact)
			end := readEnd(t, dir)
			if got := float64(*end.ValLoss); !(math.Abs(got-val) <= 1e-5*val) {
				t.Errorf("%s: validation %v, ddp has %v", strategy, got, val)
			}
			var bytes int64
			for _, r := range readSteps(t, dir) {
				if bytes += r.CommBytes; r.CommBytes <= 0 || r.ForwardMS <= 0 || r.BackwardMS <= 0 || r.OptimMS <= 0 {
					t.Errorf("%s: %+v", strategy, r)
				}
			}
			if sum := end.ForwardMS + end.BackwardMS + end.ExposedMS + end.OptimMS + end.DataMS; bytes != end.CommBytes || sum > end.StepMS {
				t.Errorf("%s: the lines have %d bytes, and the parts %g ms: %+v", strategy, bytes, sum, end)
			}
		}
	}
}

// What a step sends is what the plan says: all gradients once in stage 1 and in each
// micro-step in the others, and the weights, in stage 3 as they are used. The transport
// counts the same, but for what ranks tell each other beside it.
func TestTheBytesOfAStepAreThePlans(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		for _, model := range []string{"model.tie_embeddings=false", "model.tie_embeddings=true"} {
			dir := t.TempDir()
			var want, begin, moved, counted int64
			count := func(j *job) (n int64) { // behind all gathers
				j.keeper.(*sharded).Settle()
				if err := j.compute.Synchronize(t.Context()); err != nil {
					t.Error(err)
				}
				for _, w := range j.group.Stats().Wires {
					n += w.Sent
				}
				return n
			}
			_, errs := trainChanged(t, 2, func(j *job) {
				if j.rank() == 0 {
					want, begin = j.keeper.(*sharded).Plan().Sent(3).Total(), count(j)
				}
			}, func(j *job) {
				if j.rank() == 0 {
					moved, counted = count(j)-begin, j.reducer.Sent()
				}
			}, append(small, "output="+dir, "model.hidden=64", "train.micro_batch=2", "train.grad_accum=3", "train.max_steps=8", "eval.every=0",
				"checkpoint.every=0", "checkpoint.final=false", model, fmt.Sprint("parallel.strategy=zero", stage))...)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, r := range readSteps(t, dir) {
				if r.CommBytes != want {
					t.Errorf("stage %d, %s, step %d: %d bytes sent, the plan says %d", stage, model, r.Step, r.CommBytes, want)
				}
			}
			if !(float64(moved-counted) <= 0.02*float64(moved)) || moved < counted {
				t.Errorf("stage %d, %s: the transport sent %d bytes, of which %d are counted", stage, model, moved, counted)
			}
		}
	}
}

// A sharded run that was stopped and goes on is the one that was not, bit by bit.
func TestAShardedRunResumesBitIdentically(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		a, b := t.TempDir(), t.TempDir()
		sets := append(small, "train.micro_batch=2", "train.grad_accum=2", fmt.Sprint("parallel.strategy=zero", stage))
		mustTrain(t, 3, append(sets, "output="+a)...)
		ctx, stop := context.WithCancel(t.Context())
		_, err := trainTelling(t, ctx, 3, func(line string) {
			if strings.Contains(line, `"step":1,`) {
				stop()
			}
		}, append(sets, "output="+b, "checkpoint.every=0")...)
		stop()
		if err != nil || len(readSteps(t, b)) != 2 {
			t.Fatalf("stopping: %v", err)
		}
		sameWeights(t, "step 2", weights(t, a, 2), weights(t, b, 2))
		mustTrain(t, 3, append(sets, "output="+b, "checkpoint.resume=auto")...)
		sameWeights(t, fmt.Sprintf("stage %d resumed", stage), weights(t, a, 6), weights(t, b, 6))
		full, resumed := readSteps(t, a), readSteps(t, b)
		for i := range full {
			if full[i].Loss != resumed[i].Loss || full[i].GradNorm != resumed[i].GradNorm {
				t.Errorf("stage %d, step %d: %+v, resumed %+v", stage, i+1, full[i], resumed[i])
			}
		}
	}
}

// A checkpoint does not say who wrote it: each strategy, on any number of ranks, reads
// each other's, and would write the same bits.
func TestAnyStrategyGoesOnFromAnyOther(t *testing.T) {
	type part struct {
		strategy string
		ranks    int
	}
	for _, parts := range [][]part{
		{{"zero2", 3}, {"ddp", 1}, {"zero3", 2}, {"zero2", 3}},
		{{"ddp", 2}, {"zero1", 3}, {"ddp", 3}, {"zero3", 1}},
		{{"zero2", 4}, {"zero3", 3}, {"zero1", 2}, {"zero2", 1}},
	} {
		tied := fmt.Sprint("model.tie_embeddings=", parts[0].strategy == "zero2")
		reference, dir := t.TempDir(), t.TempDir()
		mustTrain(t, 1, "output="+reference, "train.max_steps=8", "checkpoint.every=0", tied)
		want := readSteps(t, reference)
		for i, p := range parts {
			sets := append(small, "output="+dir, tied, "train.max_steps=8", "checkpoint.every=2", "checkpoint.resume=auto",
				"parallel.strategy="+p.strategy, fmt.Sprint("train.micro_batch=", 12/p.ranks))
			if i > 0 {
				before := weights(t, dir, 2*i)
				if _, twice := before["lm_head.weight"]; twice == (tied == "model.tie_embeddings=true") {
					t.Errorf("%v: %s, and lm_head.weight is there: %t", parts, tied, twice)
				}
				said, errs := trainChanged(t, p.ranks, func(j *job) {
					// What was read is written again, elsewhere, before the first step.
					again := *j.cfg
					again.Output = filepath.Join(dir, "again")
					cfg := j.cfg
					j.cfg = &again
					if err := j.save(t.Context(), true); err != nil {
						t.Error(err)
					}
					j.cfg = cfg
				}, nil, sets...)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("%v: %v", p, err)
				}
				if from := parts[i-1]; !strings.Contains(said, fmt.Sprintf("written by %d ranks with %s and ", from.ranks, from.strategy)) {
					t.Errorf("%v said %s", p, said)
				}
				sameWeights(t, fmt.Sprintf("%v read and written", p), before, weights(t, filepath.Join(dir, "again"), 2*i))
			} else {
				mustTrain(t, p.ranks, sets...)
			}
			// The next part goes on from two steps later.
			for step := 2*i + 4; step <= 8 && i < len(parts)-1; step += 2 {
				if err := os.RemoveAll(filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%08d", step))); err != nil {
					t.Fatal(err)
				}
			}
		}
		got := readSteps(t, dir)
		for i, w := range want {
			if off := math.Abs(float64(got[i].Loss-w.Loss)) / float64(w.Loss); !(off <= 1e-4) {
				t.Errorf("%v: step %d: loss %v, one rank has %v", parts, i+1, got[i].Loss, w.Loss)
			}
		}
	}
}

// Rank 0's disk may be full: the others come to the end of a checkpoint all the same,
// and training goes on.
func TestAShardedCheckpointThatFailsDoesNotStopTheOthers(t *testing.T) {
	dir := t.TempDir()
	_, errs := trainChanged(t, 3, func(j *job) {
		if j.rank() == 0 {
			if err := os.WriteFile(j.checkpoints(), nil, 0o666); err != nil { // a file where the folder belongs
				t.Error(err)
			}
		}
	}, nil, append(small, "output="+dir, "train.micro_batch=4", "parallel.strategy=zero2", "checkpoint.every=4", "checkpoint.final=false")...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := len(readSteps(t, dir)); got != 6 {
		t.Errorf("%d steps were made", got)
	}
}

// All ranks of stage 3 sample together, and of the others rank 0 alone.
func TestAShardedModelSamples(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("to be or not to be ", 300)), 0o666); err != nil {
		t.Fatal(err)
	}
	var first string
	for stage := 1; stage <= 3; stage++ {
		dir := t.TempDir()
		mustTrain(t, 2, "output="+dir, "data.format=text", "model.vocab=256", "data.train="+text, "eval.every=0", "train.micro_batch=2",
			"sample.every=3", "sample.prompt=to be", "sample.tokens=8", fmt.Sprint("parallel.strategy=zero", stage))
		b, err := os.ReadFile(filepath.Join(dir, "samples", "step-00000006.txt"))
		if err != nil {
			t.Fatal(err)
		}
		if stage == 1 {
			first = string(b)
		}
		if string(b) != first || !strings.HasPrefix(first, "to be") {
			t.Errorf("stage %d: %q, stage 1 has %q", stage, b, first)
		}
	}
}

// Sequences that the ranks cannot share equally are evaluated in the same number of
// passes on all, for in stage 3 each pass is collective: each counts once, and nobody
// waits for ever.
func TestAnUnevenEvaluationEnds(t *testing.T) {
	text, short := filepath.Join(t.TempDir(), "text"), filepath.Join(t.TempDir(), "short")
	for name, n := range map[string]int{text: 300, short: 9} { // the short one is of 10 sequences
		if err := os.WriteFile(name, []byte(strings.Repeat("to be or not to be ", n)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var want float64
	for _, c := range []struct {
		ranks    int
		strategy string
	}{{1, "ddp"}, {3, "zero1"}, {3, "zero2"}, {3, "zero3"}, {4, "zero3"}} {
		dir := t.TempDir()
		mustTrain(t, c.ranks, "output="+dir, "data.format=text", "model.vocab=256", "data.train="+text, "data.eval="+short, "eval.every=3", "eval.steps=0",
			"train.grad_accum=1", fmt.Sprint("train.micro_batch=", 12/c.ranks), "parallel.strategy="+c.strategy)
		got := float64(*readEnd(t, dir).ValLoss)
		if want == 0 {
			want = got
		}
		if !(math.Abs(got-want) <= 1e-5*want) {
			t.Errorf("%s on %d ranks: validation %v, one rank has %v", c.strategy, c.ranks, got, want)
		}
	}
}

// A plan shows what a rank holds and sends under each stage.
func TestAShardedPlanIsShown(t *testing.T) {
	last := int64(math.MaxInt64)
	for stage := 1; stage <= 3; stage++ {
		cfg := parse(t, fmt.Sprint("parallel.strategy=zero", stage), "model.hidden=128", "model.layers=8", "model.tie_embeddings=true", "train.micro_batch=1", "parallel.bucket_cap_mb=0.1", "parallel.first_bucket_mb=0.1")
		text, err := Plan(cfg, 4, 4)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"a rank sends ", fmt.Sprintf("ZeRO stage %d, 4 ranks", stage), "AdamW moments", "model.embed_tokens.weight (tied)"}
		if stage > 1 {
			want = append(want, "buffers of gradients and weights")
		}
		for _, want := range want {
			if !strings.Contains(text, want) {
				t.Errorf("stage %d: %q is not in\n%s", stage, want, text)
			}
		}
		if again, err := Plan(cfg, 4, 4); err != nil || again != text {
			t.Errorf("stage %d: planned again (%v) it is\n%snot\n%s", stage, err, again, text)
		}
		a, err := describe(cfg, 4, chooseDevice)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.spread(4); err != nil {
			t.Fatal(err)
		}
		_, sum := a.bytes()
		if sum >= last {
			t.Errorf("stage %d takes %d bytes, the one before %d", stage, sum, last)
		}
		last = sum
		a.close()
	}
}
