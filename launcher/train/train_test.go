package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// console collects what rank 0 tells the user.
type console struct {
	mu   sync.Mutex
	b    bytes.Buffer
	told func(line string) // may be nil
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told != nil {
		c.told(string(p))
	}
	return c.b.Write(p)
}
func (c *console) Close() error { return nil }
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

const base = `
seed: 7
model: {arch: llama, layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 64}
data: {format: synthetic, seq_len: 16}
train: {max_steps: 6, micro_batch: 12, lr: 1e-2, warmup_steps: 2, threads: 1}
eval: {every: 3, steps: 1}
checkpoint: {every: 2, keep: 0}
`

// trainRanks runs a job of n ranks in this process, with base changed by sets, and
// returns what rank 0 said and the first error of any rank that is not an echo of
// another's.
func trainRanks(t *testing.T, ctx context.Context, n int, sets ...string) (string, error) {
	t.Helper()
	return trainTelling(t, ctx, n, nil, sets...)
}

// trainTelling is trainRanks that hands each line of rank 0 to told.
func trainTelling(t *testing.T, ctx context.Context, n int, told func(string), sets ...string) (string, error) {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(base), append(sets, "comm.timeout=1m"))
	if err != nil {
		t.Fatal(err)
	}
	groups, err := comm.Local(n)
	if err != nil {
		t.Fatal(err)
	}
	out := &console{told: told}
	errs := make([]error, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			var w io.WriteCloser = out
			if r > 0 {
				w = &console{}
			}
			errs[r] = run(ctx, cfg, status.NewWriter(w), n, func(context.Context, config.Comm) (*comm.Group, error) { return groups[r], nil })
		})
	}
	all.Wait()
	return out.String(), errors.Join(errs...)
}

func mustTrain(t *testing.T, n int, sets ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	said, err := trainRanks(t, ctx, n, sets...)
	if err != nil {
		t.Fatalf("%d ranks, %v: %v", n, sets, err)
	}
	return said
}

// steps reads the training lines of a run's metrics.
func readSteps(t *testing.T, output string) (out []stepRecord) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"step_ms"`) && !strings.Contains(line, `"event"`) {
			var r stepRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			out = append(out, r)
		}
	}
	return out
}

// readEnd reads the last line of a run's metrics.
func readEnd(t *testing.T, output string) (r endRecord) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(output, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || r.Event != "end" {
		t.Fatalf("the last line is %s (%v)", lines[len(lines)-1], err)
	}
	return r
}

// weights reads all tensors of a checkpoint.
func weights(t *testing.T, output string, step int) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, file := range []string{weightsFile, optimizerFile} {
		r, err := safetensors.Open(filepath.Join(output, "checkpoints", fmt.Sprintf("step-%08d", step), file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range r.Names() {
			_, b, err := r.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = bytes.Clone(b)
		}
		r.Close()
	}
	return out
}

func sameWeights(t *testing.T, what string, a, b map[string][]byte) {
	t.Helper()
	if len(a) == 0 || len(a) != len(b) {
		t.Fatalf("%s: %d and %d tensors", what, len(a), len(b))
	}
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// However a global batch of 12 sequences is split over ranks and micro-steps, the
// losses and gradient norms are those of one rank, and evaluation reads the same.
func TestAnySplitOfABatchGivesTheSameGradients(t *testing.T) {
	whole := t.TempDir()
	mustTrain(t, 1, "output="+whole)
	want := readSteps(t, whole)
	if len(want) != 6 {
		t.Fatalf("one rank wrote %d steps", len(want))
	}
	wantVal := float64(*readEnd(t, whole).ValLoss)
	for _, split := range []struct{ ranks, micro, accum int }{{1, 3, 4}, {2, 6, 1}, {3, 4, 1}, {4, 3, 1}, {3, 1, 4}, {2, 2, 3}} {
		dir := t.TempDir()
		mustTrain(t, split.ranks, "output="+dir, fmt.Sprintf("train.micro_batch=%d", split.micro), fmt.Sprintf("train.grad_accum=%d", split.accum))
		if val := float64(*readEnd(t, dir).ValLoss); !(math.Abs(val-wantVal) <= 2e-5*wantVal) {
			t.Errorf("%+v: validation %v, one rank has %v", split, val, wantVal)
		}
		got := readSteps(t, dir)
		for i, w := range want {
			for what, v := range map[string][2]status.Float{"loss": {got[i].Loss, w.Loss}, "gradient norm": {got[i].GradNorm, w.GradNorm}} {
				if off := math.Abs(float64(v[0]-v[1])) / float64(v[1]); !(off <= 2e-5) {
					t.Errorf("%+v: step %d: %s %v, one rank has %v (off by %.1e)", split, w.Step, what, v[0], v[1], off)
				}
			}
		}
	}
	if first, last := want[0].Loss, want[5].Loss; !(last < first-0.2) {
		t.Errorf("the loss went from %v to %v: nothing was learned", first, last)
	}
}

// The parts of the mean step are no more than the whole, however the ranks wait
// for each other.
func TestTheSummarysTimesAddUp(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 3, "output="+dir, "train.micro_batch=4", "parallel.first_bucket_mb=0.01", "parallel.bucket_cap_mb=0.02")
	r := readEnd(t, dir)
	parts := map[string]float64{"forward": r.ForwardMS, "backward": r.BackwardMS, "optimizer": r.OptimMS, "data": r.DataMS}
	sum := r.ExposedMS
	for name, ms := range parts {
		if sum += ms; ms <= 0 {
			t.Errorf("%s takes %g ms", name, ms)
		}
	}
	if sum > r.StepMS {
		t.Errorf("the parts of a step take %g ms, the step %g: %+v", sum, r.StepMS, r)
	}
	var tokens, bytes int64
	for _, s := range readSteps(t, dir) {
		bytes += s.CommBytes
		tokens += 12 * 16
	}
	if r.Steps != 6 || r.Tokens != tokens || r.CommBytes != bytes || bytes == 0 {
		t.Errorf("%d steps, %d tokens, %d bytes; the lines have %d tokens and %d bytes", r.Steps, r.Tokens, r.CommBytes, tokens, bytes)
	}
}

func TestARerunAndAResumedRunAreBitIdentical(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	sets := []string{"train.micro_batch=2", "train.grad_accum=2", "parallel.first_bucket_mb=0.01", "parallel.bucket_cap_mb=0.02"}
	mustTrain(t, 3, append(sets, "output="+a)...)
	mustTrain(t, 3, append(sets, "output="+b)...)
	sameWeights(t, "rerun", weights(t, a, 6), weights(t, b, 6))

	// The same job, stopped by a signal while step 2 is under way, and gone on with.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopBehind1 := func(line string) {
		if strings.Contains(line, `"step":1,`) {
			stop()
		}
	}
	said, err := trainTelling(t, ctx, 3, stopBehind1, append(sets, "output="+c, "checkpoint.every=0")...)
	if err != nil || !strings.Contains(said, "stopped early") {
		t.Fatalf("stopping: %v, said %s", err, said)
	}
	if got := readSteps(t, c); len(got) != 2 {
		t.Fatalf("%d steps were made, the signal came behind step 1", len(got))
	}
	said = mustTrain(t, 3, append(sets, "output="+c, "checkpoint.resume=auto")...)
	if !strings.Contains(said, "going on from") {
		t.Errorf("said %s", said)
	}
	sameWeights(t, "resumed", weights(t, a, 6), weights(t, c, 6))
	full, resumed := readSteps(t, a), readSteps(t, c)
	for i := range full {
		if full[i].Loss != resumed[i].Loss || full[i].LR != resumed[i].LR || full[i].GradNorm != resumed[i].GradNorm {
			t.Errorf("step %d: %+v, resumed %+v", i+1, full[i], resumed[i])
		}
	}
	said = mustTrain(t, 3, append(sets, "output="+c, "checkpoint.resume=auto")...)
	if !strings.Contains(said, "nothing to do") {
		t.Errorf("a finished job said %s", said)
	}
	if again := readSteps(t, c); len(again) != 6 {
		t.Errorf("a finished job left %d lines of metrics", len(again))
	}
}

func TestResumingOnAnotherNumberOfRanksGoesOnWithTheSameSamples(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	mustTrain(t, 1, "output="+a)
	mustTrain(t, 2, "output="+b, "train.micro_batch=6", "checkpoint.every=4", "train.max_steps=6")
	os.RemoveAll(filepath.Join(b, "checkpoints", "step-00000006"))
	said := mustTrain(t, 3, "output="+b, "train.micro_batch=4", "checkpoint.resume=auto")
	if !strings.Contains(said, "written by 2 ranks") {
		t.Errorf("said %s", said)
	}
	want, got := readSteps(t, a), readSteps(t, b)
	for i := range want {
		if off := math.Abs(float64(got[i].Loss - want[i].Loss)); !(off <= 1e-4) {
			t.Errorf("step %d: loss %v, one rank has %v", i+1, got[i].Loss, want[i].Loss)
		}
	}
	_, err := trainRanks(t, t.Context(), 2, "output="+b, "train.micro_batch=4", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "global_batch") {
		t.Errorf("another global batch: %v", err)
	}
	_, err = trainRanks(t, t.Context(), 1, "output="+b, "seed=8", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "seed") {
		t.Errorf("another seed: %v", err)
	}
}

func TestADamagedCheckpointIsNamedAndTheOneBeforeItOffered(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 2, "output="+dir, "train.micro_batch=6")
	file := filepath.Join(dir, "checkpoints", "step-00000006", weightsFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = trainRanks(t, t.Context(), 2, "output="+dir, "train.micro_batch=6", "checkpoint.resume=auto")
	if err == nil || !strings.Contains(err.Error(), "step-00000006: model.safetensors is damaged") || !strings.Contains(err.Error(), "checkpoint.resume="+dir+"/checkpoints/step-00000004") {
		t.Fatalf("got %v", err)
	}
	mustTrain(t, 2, "output="+dir, "train.micro_batch=6", "checkpoint.resume="+filepath.Join(dir, "checkpoints", "step-00000004"))
	if got := len(readSteps(t, dir)); got != 6 {
		t.Errorf("%d lines of metrics", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "old-1", "checkpoints", "step-00000006")); err != nil {
		t.Errorf("the damaged checkpoint was not set aside: %v", err)
	}
}

// Workers that are started again take up the checkpoint of their own job, and set
// another's aside.
func TestARestartKnowsItsOwnCheckpoints(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TORCHELASTIC_RUN_ID", "one")
	mustTrain(t, 1, "output="+dir, "train.max_steps=4", "train.schedule=constant")
	t.Setenv("TORCHELASTIC_RESTART_COUNT", "1")
	if said := mustTrain(t, 1, "output="+dir, "train.schedule=constant"); !strings.Contains(said, "step 4 of 6") {
		t.Errorf("the same job said %s", said)
	}
	t.Setenv("TORCHELASTIC_RUN_ID", "two")
	if said := mustTrain(t, 1, "output="+dir); !strings.Contains(said, "old-1") {
		t.Errorf("another job said %s", said)
	}
}

// Ranks that read other data than rank 0 are named before the first step.
func TestOtherDataOnARankIsFound(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(name, 500)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ train, eval, want string }{
		{"b", "c", "rank 1 on .* reads other training data than rank 0"},
		{"a", "b", "rank 1 on .* reads other evaluation data than rank 0"},
	} {
		groups, err := comm.Local(2)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 2)
		var all sync.WaitGroup
		for r, files := range [][2]string{{"a", "c"}, {c.train, c.eval}} {
			cfg, err := config.Parse("test.yaml", []byte(base), []string{"output=" + dir, "data.format=text", "model.vocab=256", "train.micro_batch=1",
				"data.train=" + filepath.Join(dir, files[0]), "data.eval=" + filepath.Join(dir, files[1])})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				errs[r] = run(t.Context(), cfg, status.NewWriter(&console{}), 2, func(context.Context, config.Comm) (*comm.Group, error) { return groups[r], nil })
			})
		}
		all.Wait()
		for r, err := range errs {
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("rank %d: %v, want %s", r, err, c.want)
			}
		}
	}
}

// A signal while the ranks still meet ends them without an error of their own, and
// at once: nobody waits for a rank that has not come as far.
func TestASignalBeforeTheFirstStep(t *testing.T) {
	cfg, err := config.Parse("test.yaml", []byte(base), []string{"output=" + t.TempDir(), "comm.timeout=1m"})
	if err != nil {
		t.Fatal(err)
	}
	groups, err := comm.Local(2) // of which one never does anything
	if err != nil {
		t.Fatal(err)
	}
	defer groups[1].Close()
	ctx, signal := context.WithCancel(t.Context())
	out, begin := &console{}, time.Now()
	err = run(ctx, cfg, status.NewWriter(out), 2, func(context.Context, config.Comm) (*comm.Group, error) {
		signal()
		return groups[0], nil
	})
	if err != nil || !strings.Contains(out.String(), "ended before the first step") {
		t.Errorf("%v, said %s", err, out)
	}
	if took := time.Since(begin); took > cfg.Comm.Timeout/2 {
		t.Errorf("it took %s", took)
	}
}

// Memory is refused on what all ranks of the host take together.
func TestWhatAHostCannotHoldIsRefused(t *testing.T) {
	cfg, err := config.Parse("test.yaml", []byte(base), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := describe(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, sum := a.bytes()
	ranks := int(hostMemory() / sum)
	if err := a.fits(ranks); err != nil {
		t.Errorf("%d ranks of %d bytes on %d: %v", ranks, sum, hostMemory(), err)
	}
	if err := a.fits(ranks + 1); err == nil || !strings.Contains(err.Error(), "AdamW moments") {
		t.Errorf("%d ranks of %d bytes on %d: %v", ranks+1, sum, hostMemory(), err)
	}
}

func TestSamplesSteerNoTerminal(t *testing.T) {
	if got, want := printable("a\x00\x1b[31m\tb\nc\u00e9\x7f\u009b"), "a\ufffd\ufffd[31m\tb\nc\u00e9\ufffd\ufffd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestANewRunSetsTheOldOneAside(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 1, "output="+dir)
	before := weights(t, dir, 6)
	said := mustTrain(t, 1, "output="+dir, "seed=8")
	if !strings.Contains(said, "old-1") {
		t.Errorf("said %s", said)
	}
	sameWeights(t, "old run", before, weights(t, filepath.Join(dir, "old-1"), 6))
}

func TestStepsThatAreNotFiniteAreSkippedOnAllRanksAndEndTheRun(t *testing.T) {
	dir := t.TempDir()
	_, err := trainRanks(t, t.Context(), 3, "output="+dir, "train.micro_batch=4", "train.lr=1e30", "train.max_grad_norm=0", "train.skip_nonfinite=2", "train.warmup_steps=0")
	if err == nil || !strings.Contains(err.Error(), "2 steps in a row") {
		t.Fatalf("got %v", err)
	}
	got := readSteps(t, dir)
	last := got[len(got)-1]
	if !last.Skipped {
		t.Errorf("the last step written is %+v", last)
	}
}

func TestATraceShowsEveryRankAndStream(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 2, "output="+dir, "train.micro_batch=6", "log.trace=2")
	b, err := os.ReadFile(filepath.Join(dir, "trace.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rank 0"`, `"rank 1"`, `"compute"`, `"comm"`, "AllReduce"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the trace lacks %s", want)
		}
	}
}
