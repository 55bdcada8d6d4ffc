package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// adapting trains adapters with dropout, and large enough steps to learn something.
var adapting = []string{"lora.r=4", "lora.dropout=0.2", "train.lr=3e-2"}

// However a batch is split over ranks and micro-steps, and whatever is sharded,
// adapters are trained alike: dropout follows the samples.
func TestAnySplitTrainsTheSameAdapters(t *testing.T) {
	whole := t.TempDir()
	said := mustTrain(t, 1, append(adapting, "output="+whole)...)
	// 2 layers, of 32 and 96 channels and 16 of keys and of values.
	if want := 2 * 4 * (4*32 + 32 + 2*16 + 32 + 3*(32+96)); !strings.Contains(said, fmt.Sprintf(", %d of them trained", want)) {
		t.Errorf("said %s, want %d trained", said, want)
	}
	if !strings.Contains(said, "adapters: rank 4, alpha 8, dropout 0.2, on 14 layers: ") {
		t.Errorf("said %s", said)
	}
	want, val := readSteps(t, whole), float64(*readEnd(t, whole).ValLoss)
	if first, last := want[0].Loss, want[5].Loss; !(last < first-0.05) {
		t.Errorf("the loss went from %v to %v: nothing was learned", first, last)
	}
	for _, split := range []struct {
		ranks, micro, accum int
		strategy            string
	}{{1, 3, 4, "ddp"}, {2, 6, 1, "ddp"}, {2, 3, 2, "ddp"}, {3, 2, 2, "zero1"}, {3, 4, 1, "zero2"}, {2, 3, 2, "zero3"}} {
		dir := t.TempDir()
		mustTrain(t, split.ranks, slices.Concat(adapting, small, []string{"output=" + dir, "parallel.strategy=" + split.strategy,
			fmt.Sprint("train.micro_batch=", split.micro), fmt.Sprint("train.grad_accum=", split.accum)})...)
		near(t, fmt.Sprint(split), want, readSteps(t, dir), false)
		if got := float64(*readEnd(t, dir).ValLoss); !(math.Abs(got-val) <= 1e-5*val) {
			t.Errorf("%v: validation %v, one rank has %v", split, got, val)
		}
	}
	plain := t.TempDir()
	mustTrain(t, 1, append(adapting, "output="+plain, "lora.dropout=0")...)
	if a, b := want[0].Loss, readSteps(t, plain)[0].Loss; a == b {
		// B is zero in the first step: nothing is dropped from nothing.
		if a, b = want[1].Loss, readSteps(t, plain)[1].Loss; a == b {
			t.Errorf("the losses are %v with dropout and without", a)
		}
	}
}

// placing writes down of which step and sample the training batches are.
type placing struct {
	models.Model
	places [][2]int
}

func (p *placing) Forward(w param.Weights, b models.Batch, loss tensor.Tensor, train bool) {
	if train {
		p.places = append(p.places, [2]int{b.Step, b.Sample})
	}
	p.Model.Forward(w, b, loss, train)
}

// A batch says of which step it is, counted over resumes, and where in the step's batch
// over all ranks its first sequence is: ranks take turns by micro-batches.
func TestBatchesSayWhereTheyAre(t *testing.T) {
	dir := t.TempDir()
	for run, steps := range []int{2, 3} {
		placed := make([]*placing, 2)
		_, errs := trainChanged(t, 2, func(j *job) {
			placed[j.rank()] = &placing{Model: j.model}
			j.model = placed[j.rank()]
		}, nil, "output="+dir, "train.micro_batch=3", "train.grad_accum=2", "train.warmup_steps=0", fmt.Sprint("train.max_steps=", steps), "checkpoint.resume=auto")
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		want := [][][2]int{
			{{0, 0}, {0, 6}, {1, 0}, {1, 6}}, {{0, 3}, {0, 9}, {1, 3}, {1, 9}},
			{{2, 0}, {2, 6}}, {{2, 3}, {2, 9}},
		}
		for r, m := range placed {
			if !slices.Equal(m.places, want[2*run+r]) {
				t.Errorf("run %d, rank %d: batches at %v, want %v", run, r, m.places, want[2*run+r])
			}
		}
	}
}

// What is recomputed is dropped again: not a bit differs.
func TestRecomputationTrainsTheSameAdapters(t *testing.T) {
	var want map[string][]byte
	for _, how := range []string{"none", "norms", "block"} {
		dir := t.TempDir()
		mustTrain(t, 2, append(adapting, "output="+dir, "train.micro_batch=6", "train.recompute="+how)...)
		got := weights(t, dir, 6)
		if want == nil {
			want = got
		}
		sameWeights(t, how, want, got)
	}
}

// A checkpoint holds the adapters and their moments alone, under PEFT's names, and a
// run that goes on from it, under another strategy too, takes the frozen weights from
// where they came from.
func TestACheckpointHoldsAdaptersAlone(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	sets := slices.Concat(adapting, small, []string{"train.micro_batch=4", "lora.targets=[q_proj,down_proj]"})
	mustTrain(t, 3, append(sets, "output="+a)...)
	mustTrain(t, 3, append(sets, "output="+b, "parallel.strategy=zero2", "parallel.check_replicas=100")...)
	want := weights(t, a, 6)
	var names []string
	for layer := range 2 {
		for _, m := range []string{"self_attn.q_proj", "mlp.down_proj"} {
			for _, factor := range []string{"A", "B"} {
				name := fmt.Sprintf("model.layers.%d.%s.lora_%s.weight", layer, m, factor)
				names = append(names, name, "m."+name, "v."+name)
			}
		}
	}
	for _, name := range names {
		if want[name] == nil {
			t.Errorf("the checkpoint lacks %s", name)
		}
	}
	if len(want) != len(names) {
		t.Errorf("the checkpoint holds %d tensors, want the %d of adapters", len(want), len(names))
	}

	c := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, err := trainTelling(t, ctx, 3, func(line string) {
		if strings.Contains(line, `"step":1,`) {
			stop()
		}
	}, append(sets, "output="+c, "checkpoint.every=0")...)
	if err != nil {
		t.Fatal(err)
	}
	mustTrain(t, 3, append(sets, "output="+c, "checkpoint.resume=auto")...)
	sameWeights(t, "resumed", want, weights(t, c, 6))

	for _, change := range []string{"lora.r=8", "lora.alpha=1", "lora.dropout=0", "lora.targets=all"} {
		_, err := trainRanks(t, t.Context(), 3, append(sets, "output="+c, "checkpoint.resume=auto", change)...)
		if key, _, _ := strings.Cut(change, "="); err == nil || !strings.Contains(err.Error(), "\n  "+key+": ") {
			t.Errorf("%s: error %v", change, err)
		}
	}
}

// A job of the file that a user writes: adapters on a model's folder. The folder's
// weights keep every bit, on all ranks.
func TestAdaptersOnAFolder(t *testing.T) {
	model := testenv.Data(t, "tiny-qwen2-synthetic")
	shape, err := hf.ReadShape(model)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var tokens []byte
	for i := range 5000 {
		tokens = binary.LittleEndian.AppendUint16(tokens, uint16(i*i%(shape["vocab"].(int))))
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens.bin"), tokens, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"ddp", "zero3"} {
		cfg, err := config.Parse("sft.yaml", []byte(fmt.Sprintf(`
model: {path: %s}
data: {format: tokens, train: %s, seq_len: 16}
parallel: {strategy: %s}
train: {max_steps: 8, micro_batch: 2, lr: 5e-2, threads: 1}
lora: {r: 8}
checkpoint: {every: 0}
output: %s
`, model, filepath.Join(dir, "tokens.bin"), strategy, filepath.Join(dir, strategy))), []string{"comm.timeout=1m"})
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Lora.Alpha != 16 {
			t.Errorf("alpha is %v, want twice r", cfg.Lora.Alpha)
		}
		_, errs := trainConfig(t, 2, cfg, func(*job) {}, func(j *job) {
			f, err := hf.Open(model, dtype.F32)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			byName := map[string]*param.Param{}
			for _, p := range j.model.Params() {
				byName[p.Name] = p
			}
			err = f.Load(f.Params(), func(base *param.Param, values []float32) error {
				p := byName[base.Name]
				j.weights.Use(p.Block)
				defer j.weights.Done(p.Block)
				if err := j.compute.Synchronize(t.Context()); err != nil {
					return err
				}
				if w := j.weights.Weight(p); !p.Frozen || !bytes.Equal(w.Buf.Bytes(), device.Of(values).Bytes()) {
					t.Errorf("%s, rank %d: %s is frozen: %t, and is not the folder's", strategy, j.rank(), p.Name, p.Frozen)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		steps := readSteps(t, cfg.Output)
		if first, last := steps[0].Loss, steps[7].Loss; !(last < first-0.3) {
			t.Errorf("%s: the loss went from %v to %v: nothing was learned", strategy, first, last)
		}
	}
}

// Frozen weights have no masters, gradients or moments, and what is planned is what is
// allocated.
func TestFrozenWeightsTakeNoState(t *testing.T) {
	sets := []string{"train.device=cuda", "train.threads=0", "model.hidden=256", "model.heads=4", "lora.r=8", "model.tie_embeddings=true", "model.vocab=2000"}
	a, err := describe(parse(t, sets...), 2, planDevice)
	if err != nil {
		t.Fatal(err)
	}
	a.world = 2
	all, trained := a.sizes()
	if trained*20 > all {
		t.Fatalf("%d of %d are trained", trained, all)
	}
	rows, _ := a.bytes()
	slack := int64(256 * len(a.params))
	for name, want := range map[string]int64{
		"weights": 2 * all, "master weights": 4 * trained, "gradients": 2 * trained, "AdamW moments": 8 * trained,
		"all ranks' rows of the embedding": 0,
	} {
		i := slices.IndexFunc(rows, func(r memoryRow) bool { return r.name == name })
		switch {
		case i < 0 && want == 0:
		case i < 0 || want == 0:
			t.Errorf("%s: row %d, want %d bytes", name, i, want)
		case rows[i].bytes < want || rows[i].bytes > want+2*slack:
			t.Errorf("%s take %d bytes, want %d", name, rows[i].bytes, want)
		}
	}
	text, err := Plan(parse(t, "lora.r=8", "lora.dropout=0.1"), 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"of them trained", "adapters     rank 8, alpha 16, dropout 0.1, on 14 layers: down_proj, gate_proj, ", "lora.inner", "lora.dropped", "backward.lora.factor"} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q:\n%s", want, text)
		}
	}
}

// Layers that the model does not have end the job before anything is allocated.
func TestUnknownTargetsAreRefused(t *testing.T) {
	for _, targets := range []string{"c_attn", "lm_head", "embed_tokens"} {
		_, err := trainRanks(t, t.Context(), 1, "output="+t.TempDir(), "lora.r=2", "lora.targets="+targets)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("lora.targets: no linear layer of the model's blocks is called %q; there are q_proj, k_proj,", targets)) {
			t.Errorf("%s: error %v", targets, err)
		}
	}
}

// Adapters go on with the weights, and are merged into those, that they are for:
// other weights of the same shape under the same path are refused.
func TestAdaptersAreForOneModel(t *testing.T) {
	parent := t.TempDir()
	in := func(name string) string { return filepath.Join(parent, name) }
	for _, seed := range []string{"1", "2"} {
		mustTrain(t, 1, "output="+in("job"+seed), "seed="+seed, "train.max_steps=2")
		exported(t, Export{From: in("job" + seed), Output: in(seed)})
	}
	run := []string{"output=" + in("lora"), "model.path=" + in("1"), "lora.r=2"}
	mustTrain(t, 1, append(run, "train.max_steps=2")...)
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "which the adapters are for") {
			t.Errorf("adapters and other weights: %v", err)
		}
	}
	_, err := Export{From: in("lora"), Model: in("2"), Output: in("merged"), Merge: true}.Run(t.Context())
	refused(err)
	exported(t, Export{From: in("lora"), Output: in("merged"), Merge: true})
	exported(t, Export{From: in("lora"), Output: in("adapters")})
	_, onto := Export{From: in("lora"), Output: in("1"), Merge: true, Replace: true}.Run(t.Context())
	for _, err := range []error{
		onto,
		Merge{Model: in("1"), Adapters: in("adapters"), Output: in("1"), Replace: true}.Run(t.Context()),
		Merge{Model: in("1"), Adapters: in("adapters"), Output: in("adapters"), Replace: true}.Run(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), "is what the new folder is made of") {
			t.Errorf("a folder in the place of what it is made of: %v", err)
		}
	}
	if err := errors.Join(os.Rename(in("1"), in("kept")), os.Rename(in("2"), in("1"))); err != nil {
		t.Fatal(err)
	}
	_, err = trainRanks(t, t.Context(), 1, append(run, "train.max_steps=4", "checkpoint.resume=auto")...)
	refused(err)
	if err := errors.Join(os.Rename(in("1"), in("2")), os.Rename(in("kept"), in("1"))); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, 1, append(run, "train.max_steps=4", "checkpoint.resume=auto")...)
}
