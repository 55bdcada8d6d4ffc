package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/device"
)

// However a global batch of 12 sequences is split over ranks and micro-steps, the
// losses and gradient norms are those of one rank, and evaluation reads the same.
func TestAnySplitOfABatchGivesTheSameGradients(t *testing.T) {
	for name, model := range map[string][]string{
		"a head of its own": nil,
		// The embedding's last rows travel apart from its gradient.
		"tied": {"model.tie_embeddings=true", "model.vocab=1600"},
	} {
		t.Run(name, func(t *testing.T) {
			whole := t.TempDir()
			mustTrain(t, 1, append(model, "output="+whole)...)
			want := readSteps(t, whole)
			if len(want) != 6 {
				t.Fatalf("one rank wrote %d steps", len(want))
			}
			wantVal := float64(*readEnd(t, whole).ValLoss)
			for _, split := range []struct{ ranks, micro, accum int }{{1, 3, 4}, {2, 6, 1}, {3, 4, 1}, {4, 3, 1}, {3, 1, 4}, {2, 2, 3}} {
				dir := t.TempDir()
				sets := append(model, "output="+dir, fmt.Sprintf("train.micro_batch=%d", split.micro), fmt.Sprintf("train.grad_accum=%d", split.accum))
				_, errs := trainChanged(t, split.ranks, func(*job) {}, func(j *job) {
					rows := 0
					if model != nil && split.ranks > 1 {
						rows = split.ranks * split.micro * 16
					}
					if s, err := j.sink.(*ddp.DDP).Stats(t.Context()); err != nil || s.Rows != rows {
						t.Errorf("%+v: %d rows travelled apart, want %d (%v)", split, s.Rows, rows, err)
					}
				}, sets...)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("%+v: %v", split, err)
				}
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
			if first, last := want[0].Loss, want[5].Loss; !(last < first-0.1) {
				t.Errorf("the loss went from %v to %v: nothing was learned", first, last)
			}
		})
	}
}

// The parts of the mean step are no more than the whole, however the ranks wait
// for each other.
func TestTheSummarysTimesAddUp(t *testing.T) {
	dir := t.TempDir()
	mustTrain(t, 3, "output="+dir, "train.micro_batch=4", "parallel.first_bucket_mb=0.01", "parallel.bucket_cap_mb=0.02")
	r := readEnd(t, dir)
	parts := map[string]float64{"forward": r.ForwardMS, "backward": r.BackwardMS, "optimizer": r.OptimMS}
	sum := r.ExposedMS + r.DataMS
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
		var cfgs []*config.Config
		for _, files := range [][2]string{{"a", "c"}, {c.train, c.eval}} {
			cfgs = append(cfgs, parse(t, "output="+dir, "data.format=text", "model.vocab=256", "train.micro_batch=1",
				"data.train="+filepath.Join(dir, files[0]), "data.eval="+filepath.Join(dir, files[1])))
		}
		_, errs := onRanks(t, 2, nil, func(g *comm.Group, out *status.Writer) error {
			return run(t.Context(), cfgs[g.Rank()], out, place{ranks: 2}, joining(g))
		})
		for r, err := range errs {
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("rank %d: %v, want %s", r, err, c.want)
			}
		}
	}
}

// Folders of the same shape with other weights are told apart before shards of them are
// mixed, whatever the strategy.
func TestOtherWeightsOnARankAreFound(t *testing.T) {
	dir := t.TempDir()
	var folders []string
	for _, seed := range []string{"1", "2"} {
		out, folder := filepath.Join(dir, "run"+seed), filepath.Join(dir, "model"+seed)
		mustTrain(t, 1, "output="+out, "seed="+seed, "train.max_steps=2")
		exported(t, Export{From: out, Output: folder})
		folders = append(folders, folder)
	}
	for _, strategy := range []string{"ddp", "zero3"} {
		for _, second := range folders {
			var cfgs []*config.Config
			for _, folder := range []string{folders[0], second} {
				cfg, err := config.Parse("a.yaml", []byte("model: {path: "+folder+"}\ndata: {format: synthetic, seq_len: 16}\n"),
					[]string{"output=" + filepath.Join(dir, "out"), "train.max_steps=1", "train.micro_batch=1", "parallel.strategy=" + strategy,
						"train.threads=1", "train.device=cpu", "eval.every=0", "checkpoint.every=0", "checkpoint.final=false"})
				if err != nil {
					t.Fatal(err)
				}
				cfgs = append(cfgs, cfg)
			}
			_, errs := onRanks(t, 2, nil, func(g *comm.Group, out *status.Writer) error {
				return run(t.Context(), cfgs[g.Rank()], out, place{ranks: 2}, joining(g))
			})
			for r, err := range errs {
				if same := second == folders[0]; same && err != nil ||
					!same && (err == nil || !strings.Contains(err.Error(), "reads other weights of model.path than rank 0")) {
					t.Errorf("%s, rank %d: the same folder: %v: %v", strategy, r, same, err)
				}
			}
		}
	}
}

// A signal while the ranks still meet ends them without an error of their own, and
// at once: nobody waits for a rank that has not come as far.
func TestASignalBeforeTheFirstStep(t *testing.T) {
	cfg := parse(t, "output="+t.TempDir())
	groups, err := comm.Local(2) // of which one never does anything
	if err != nil {
		t.Fatal(err)
	}
	defer groups[1].Close()
	ctx, signal := context.WithCancel(t.Context())
	out, begin := &console{}, time.Now()
	err = run(ctx, cfg, status.NewWriter(out), place{ranks: 2}, func(context.Context, config.Comm, device.Device) (*comm.Group, error) {
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
	a, err := describe(parse(t), 1, chooseDevice)
	if err != nil {
		t.Fatal(err)
	}
	_, sum := a.bytes()
	ranks := int(hostMemory() / sum)
	if err := a.fits(&machine{}, ranks); err != nil {
		t.Errorf("%d ranks of %d bytes on %d: %v", ranks, sum, hostMemory(), err)
	}
	if err := a.fits(&machine{}, ranks+1); err == nil || !strings.Contains(err.Error(), "AdamW moments") {
		t.Errorf("%d ranks of %d bytes on %d: %v", ranks+1, sum, hostMemory(), err)
	}
}

func TestSamplesSteerNoTerminal(t *testing.T) {
	if got, want := printable("a\x00\x1b[31m\tb\nc\u00e9\x7f\u009b"), "a\ufffd\ufffd[31m\tb\nc\u00e9\ufffd\ufffd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
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
