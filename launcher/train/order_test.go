package train

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorun-dev/gorun/models/data"
)

// logged is a dataset that remembers which sequences a rank has read, in order.
type logged struct {
	data.Documents
	mu   sync.Mutex
	read []int
}

func (l *logged) Read(i int, tokens, targets []int32) (int, error) {
	l.mu.Lock()
	l.read = append(l.read, i)
	l.mu.Unlock()
	return l.Documents.Read(i, tokens, targets)
}

// trainedOn runs a job and lists the sequences that it trained on, in the order of the
// global batches, whoever read them. Steps that are read ahead do not count.
func trainedOn(t *testing.T, n int, sets ...string) (ids []int) {
	t.Helper()
	logs := make([]*logged, n)
	jobs := make([]*job, n)
	_, errs := trainChanged(t, n, func(j *job) {
		j.loader.Close()
		l := &logged{Documents: j.data.Train.(data.Documents)}
		share := j.share()
		share.Total = sequencesOf(j.cfg, l.Len())
		var err error
		if j.loader, err = data.NewLoader(l, j.cfg.Seed, share); err != nil {
			t.Error(err)
		}
		logs[j.rank()] = l
	}, func(j *job) { jobs[j.rank()] = j }, sets...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	share, at := jobs[0].share(), make([]int, n)
	end := sequencesOf(jobs[0].cfg, logs[0].Len())
	for place := int64(jobs[0].first * share.Batch()); place < min(end, int64(jobs[0].done*share.Batch())); place++ {
		r := int(place) / share.MicroBatch % n
		ids = append(ids, logs[r].read[at[r]])
		at[r]++
	}
	return ids
}

// A job that is stopped in the midst of its second epoch and goes on with other ranks
// trains on what one that was not stopped trains on, at the same rates: every sequence
// once an epoch, each epoch in an order of its own.
func TestResumingInMidEpochKeepsSamplesAndRates(t *testing.T) {
	sets := append(chatJob(t, 70), "train.epochs=2.5", "train.warmup_steps=0", "train.warmup_ratio=0.2", "train.schedule=cosine_with_restarts", "train.cycles=2", "checkpoint.keep=0")
	split := func(ranks int) []string {
		return append(slices.Clone(sets), fmt.Sprintf("train.micro_batch=%d", 6/ranks))
	}
	whole := t.TempDir()
	want := trainedOn(t, 1, append(split(1), "output="+whole)...)
	rates := readSteps(t, whole)
	n := len(want) * 2 / 5 // an epoch
	for e, ids := range [][]int{want[:n], want[n : 2*n]} {
		if sorted := slices.Sorted(slices.Values(ids)); sorted[0] != 0 || sorted[n-1] != n-1 || len(slices.Compact(sorted)) != n {
			t.Errorf("epoch %d has %v", e, ids)
		}
	}
	if half := slices.Sorted(slices.Values(want[2*n:])); len(slices.Compact(half)) != (n+1)/2 || len(want) != 2*n+(n+1)/2 {
		t.Errorf("half an epoch of %d is %v", n, want[2*n:])
	}
	if slices.Equal(want[:n], want[n:2*n]) {
		t.Errorf("both epochs have the order %v", want[:n])
	}
	if n%6 == 0 || n < 12 {
		t.Fatalf("%d sequences an epoch: no step crosses from one to the next", n)
	}
	stop := n/6 + 2 // the second epoch has begun, and no step ends with it
	for _, ranks := range []int{1, 2, 3} {
		first, second := t.TempDir(), t.TempDir()
		got := trainedOn(t, ranks, append(split(ranks), "output="+first)...)
		if !slices.Equal(got, want) {
			t.Errorf("%d ranks: %v, want %v", ranks, got, want)
		}
		on := 1 + ranks%3 // another number
		from := filepath.Join(first, "checkpoints", fmt.Sprintf("step-%08d", stop))
		got = append(got[:6*stop:6*stop], trainedOn(t, on, append(split(on), "output="+second, "checkpoint.resume="+from)...)...)
		if !slices.Equal(got, want) {
			t.Errorf("%d ranks, then %d: %v, want %v", ranks, on, got, want)
		}
		steps := append(readSteps(t, first)[:stop], readSteps(t, second)...)
		if len(steps) != len(rates) {
			t.Fatalf("%d ranks, then %d: %d steps, want %d", ranks, on, len(steps), len(rates))
		}
		for i, s := range steps {
			if s.Step != i+1 || s.LR != rates[i].LR {
				t.Errorf("%d ranks, then %d: step %d has the rate %v, want %v in step %d", ranks, on, s.Step, s.LR, rates[i].LR, i+1)
			}
		}
	}
}

// rowsJob is the settings of a job that trains for an epoch, without changing anything,
// on a row for each length.
func rowsJob(t *testing.T, lengths ...int) []string {
	t.Helper()
	var rows strings.Builder
	for _, n := range lengths {
		fmt.Fprintf(&rows, "{\"text\": %q}\n", strings.Repeat(string(rune('a'+n)), n))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(rows.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	return []string{
		"data.format=text_rows", "data.train=" + dir + "/rows.jsonl", "data.cache=" + dir + "/cache", "data.seq_len=24", "data.packing=false", "model.vocab=256",
		"train.max_steps=0", "train.epochs=1", "train.warmup_steps=0", "train.lr=1e-30", "eval.every=0", "checkpoint.final=false", "checkpoint.every=0",
	}
}

// targetsOf is how many a step has counted.
func targetsOf(r stepRecord) int { return int(math.Round(float64(r.TokensPerS) * r.StepMS / 1e3)) }

// Seven micro-batches at an accumulation of four make two steps. The second has three of
// them, and its loss and gradient are their mean over their own targets: no target is
// lost, none comes twice, none is of another epoch.
func TestTheTailOfAnEpochIsAStep(t *testing.T) {
	lengths := []int{3, 5, 8, 11, 15, 19, 22}
	job := rowsJob(t, lengths...)
	out := t.TempDir()
	mustTrain(t, 1, append(job, "output="+out, "train.micro_batch=1")...)
	single := readSteps(t, out)
	if len(single) != 7 {
		t.Fatalf("%d steps", len(single))
	}
	var tail []int // the lengths of the last three
	counts := []int{}
	for _, r := range single {
		counts = append(counts, targetsOf(r))
	}
	sorted := slices.Sorted(slices.Values(counts))
	var sum, targets float64
	for i, r := range single[4:] {
		sum += float64(r.Loss) * float64(counts[4+i])
		targets += float64(counts[4+i])
		tail = append(tail, lengths[slices.Index(sorted, counts[4+i])])
	}
	alone := t.TempDir()
	mustTrain(t, 1, append(rowsJob(t, tail...), "output="+alone, "train.micro_batch=3")...)
	want := readSteps(t, alone)[0]
	if off := math.Abs(float64(want.Loss) - sum/targets); !(off <= 1e-6) {
		t.Errorf("the three rows have the loss %v together, %v by each", want.Loss, sum/targets)
	}
	// It is a mean: rows that come twice change nothing.
	twice := t.TempDir()
	mustTrain(t, 1, append(rowsJob(t, append(tail, tail...)...), "output="+twice, "train.micro_batch=6")...)
	if r := readSteps(t, twice)[0]; !(math.Abs(float64(r.GradNorm/want.GradNorm)-1) <= 2e-5) || targetsOf(r) != 2*int(targets) {
		t.Errorf("each row twice: gradient norm %v of %d targets, once it is %v", r.GradNorm, targetsOf(r), want.GradNorm)
	}
	for _, c := range []struct{ ranks, micro, accum int }{{1, 1, 4}, {1, 4, 1}, {2, 1, 2}, {4, 1, 1}, {2, 2, 1}, {1, 2, 2}} {
		out := t.TempDir()
		said := mustTrain(t, c.ranks, append(job, "output="+out, fmt.Sprint("train.micro_batch=", c.micro), fmt.Sprint("train.grad_accum=", c.accum))...)
		if !strings.Contains(said, "2 steps, 1.000 epochs; the last step holds 3 of 4 sequences") {
			t.Errorf("%+v: said %s", c, said)
		}
		steps := readSteps(t, out)
		if len(steps) != 2 {
			t.Fatalf("%+v: %d steps", c, len(steps))
		}
		got := steps[1]
		if targetsOf(got) != int(targets) || targetsOf(steps[0]) != counts[0]+counts[1]+counts[2]+counts[3] {
			t.Errorf("%+v: %d and %d targets, the rows have %v", c, targetsOf(steps[0]), targetsOf(got), counts)
		}
		for what, v := range map[string][2]float64{"loss": {float64(got.Loss), float64(want.Loss)}, "gradient norm": {float64(got.GradNorm), float64(want.GradNorm)}} {
			if off := math.Abs(v[0]-v[1]) / v[1]; !(off <= 2e-5) {
				t.Errorf("%+v: %s %v, the three rows alone have %v", c, what, v[0], v[1])
			}
		}
	}
}

// Evaluation is the mean over all targets, each counted once, whoever evaluates how
// many of the seven rows: some ranks have fewer than others, and some none.
func TestEvaluationIsTheMeanOverAllTargets(t *testing.T) {
	job := rowsJob(t, 3, 5, 8, 11, 15, 19, 22)
	out := t.TempDir()
	mustTrain(t, 1, append(job, "output="+out, "train.micro_batch=1")...)
	var sum, targets float64
	for _, r := range readSteps(t, out) {
		sum += float64(r.Loss) * float64(targetsOf(r))
		targets += float64(targetsOf(r))
	}
	eval := filepath.Join(t.TempDir(), "eval.jsonl")
	rows, err := os.ReadFile(strings.TrimPrefix(job[1], "data.train="))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(eval, rows, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ ranks, micro, accum int }{{1, 1, 4}, {1, 7, 1}, {2, 3, 1}, {3, 1, 1}, {4, 1, 1}, {3, 2, 1}} {
		out := t.TempDir()
		mustTrain(t, c.ranks, append(job, "output="+out, "data.eval="+eval, "eval.every=1", "eval.steps=0", "eval.at_start=true",
			fmt.Sprint("train.micro_batch=", c.micro), fmt.Sprint("train.grad_accum=", c.accum))...)
		evals := readEvals(t, out)
		if len(evals) < 2 || evals[0].Step != 0 {
			t.Errorf("%+v: evaluations %+v", c, evals)
		}
		for _, e := range evals {
			if off := math.Abs(float64(e.ValLoss) - sum/targets); !(off <= 1e-6) {
				t.Errorf("%+v: the loss of step %d is %v, the mean over the targets %v", c, e.Step, e.ValLoss, sum/targets)
			}
		}
	}
}

// What ends a job, epochs or steps, and what the console says of it.
func TestLength(t *testing.T) {
	for _, c := range []struct {
		epochs    string
		max, want int
		says      string
	}{
		{"2", 0, 4, "4 steps, 2.000 epochs; the last step holds 2 of 4 sequences"},
		{"2", 4, 4, "4 steps, 2.000 epochs; the last step holds 2 of 4 sequences"},
		{"2", 9, 4, "4 steps, 2.000 epochs (train.epochs, 2, end before train.max_steps, 9); the last step holds 2 of 4 sequences"},
		{"2", 3, 3, "3 steps, 1.714 epochs (train.max_steps comes before the end of train.epochs, 2)"},
		{"2.5", 0, 5, "5 steps, 2.571 epochs; the last step holds 2 of 4 sequences"}, // 17.5 sequences are 18
		{"0.5", 0, 1, "1 steps, 0.571 epochs"},
		{"0.1", 0, 1, "1 steps, 0.143 epochs; the last step holds 1 of 4 sequences"},
		{"4", 0, 7, "7 steps, 4.000 epochs"},
		{"0", 3, 3, "3 steps, 1.714 epochs"},
	} {
		cfg := parse(t, "data.format=text", "data.train=x", "model.vocab=256", "eval.every=0", "train.warmup_steps=0", "train.epochs="+c.epochs, fmt.Sprint("train.max_steps=", c.max))
		got := steps(cfg, 7, 4)
		if says := lengthOf(cfg, got, 4, 7); got != c.want || says != c.says {
			t.Errorf("%s epochs, at most %d steps: %d, %q; want %d, %q", c.epochs, c.max, got, says, c.want, c.says)
		}
	}
}
