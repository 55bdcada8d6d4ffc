package hf

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/models/sample"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// golden is a golden_torch.json. Everything here is held against its figures in
// float64, which are the mathematics; those in float32 carry PyTorch's own
// rounding, about as large as ours.
type golden struct {
	IDs     [][]int32 `json:"input_ids"`
	Float64 figures
}

type figures struct {
	Loss       float64              `json:"loss0"`
	Logits     []float64            `json:"logits_last_row0_first8"`
	LogitsNorm float64              `json:"logits_l2"`
	Argmax     []int                `json:"argmax_row0"`
	GradNorm   float64              `json:"grad_l2_total"`
	GradNorms  map[string]float64   `json:"grad_l2"`
	GradFirst  map[string][]float64 `json:"grad_first4"`
	Losses     []float64            `json:"adamw_lr1e-3_b0.9_0.999_eps1e-8_wd0.01_all_params_losses"`
	ParamNorms map[string]float64   `json:"param_l2_after_10"`
}

// batch has the next id as the target, and none at the end of a row.
func (g golden) batch() models.Batch {
	var tokens, targets []int32
	for _, row := range g.IDs {
		tokens = append(tokens, row...)
		targets = append(append(targets, row[1:]...), -1)
	}
	return modeltest.Batch(len(g.IDs), len(g.IDs[0]), tokens, targets)
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// load builds the model of a folder for b x tt tokens.
func load(t *testing.T, dir string, b, tt int) *modeltest.Rig {
	t.Helper()
	f, err := Open(dir, dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := modeltest.New(t, b, tt, func(e models.Env) (models.Model, error) { return f.NewModel(e) })
	err = f.Load(r.Model.Params(), func(p *param.Param, values []float32) error {
		copy(r.Weights.Replica.Weight(p).F32(), values)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// first is the beginning of the gradient of a part of p in the layout of files.
func first(f family, p *param.Param, part param.Part, g []float32, n int) []float32 {
	if _, transposed := f.stored(part.Name, len(p.Shape)); transposed {
		turned := make([]float32, len(g))
		transpose(turned, g, p.Shape[1], part.Rows)
		g = turned
	}
	return g[:n]
}

func TestModelsMatchPyTorch(t *testing.T) {
	for _, name := range []string{"stories260K", "tiny-random-gpt2", "tiny-qwen2-synthetic"} {
		t.Run(name, func(t *testing.T) {
			path := testenv.Data(t, name+"/golden_torch.json")
			var g golden
			decode(t, path, &g)
			r := load(t, filepath.Dir(path), len(g.IDs), len(g.IDs[0]))
			t.Run("logits", func(t *testing.T) { matchLogits(t, r, g) })
			t.Run("gradients", func(t *testing.T) { matchGradients(t, r, g, filepath.Dir(path)) })
			t.Run("training", func(t *testing.T) { matchTraining(t, r, g) })
		})
	}
}

func matchLogits(t *testing.T, r *modeltest.Rig, g golden) {
	want, sum := g.Float64, 0.0
	var last []float32
	for i, row := range g.IDs {
		r.Reset(len(row))
		for j, id := range row {
			logits := r.Logits([]int32{id})
			sum += modeltest.Dot(logits, logits)
			if i > 0 {
				continue
			}
			last = logits
			if at := slices.Index(logits, slices.Max(logits)); at != want.Argmax[j] {
				t.Errorf("position %d: the largest logit is %d, want %d", j, at, want.Argmax[j])
			}
		}
	}
	for i, w := range want.Logits {
		modeltest.Near(t, fmt.Sprintf("logit %d", i), float64(last[i]), w, 1e-5, 0)
	}
	modeltest.Near(t, "norm of the logits", math.Sqrt(sum), want.LogitsNorm, 1e-5, 0)
}

func count(b models.Batch) (n int) {
	for _, target := range b.Targets.I32() {
		if target >= 0 {
			n++
		}
	}
	return n
}

func matchGradients(t *testing.T, r *modeltest.Rig, g golden, dir string) {
	f, err := Open(dir, dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, want := g.batch(), g.Float64
	n := count(b)
	modeltest.Near(t, "loss", r.Forward(b, false)/float64(n), want.Loss, 1e-5, 0)
	grads, total := r.Gradients(1/float32(n), b), 0.0
	if len(grads) != len(want.GradNorms) {
		t.Errorf("%d gradients, want %d", len(grads), len(want.GradNorms))
	}
	for _, p := range f.Params() {
		for _, part := range p.Split() {
			name, got := part.Name, grads[part.Name]
			norm := want.GradNorms[name]
			modeltest.Near(t, "norm of the gradient of "+name, modeltest.Norm(got), norm, 1e-5, 0)
			total += modeltest.Dot(got, got)
			// Elements far below the average one are compared on its scale.
			scale := norm / math.Sqrt(float64(len(got)))
			for i, x := range first(f.family, p, part, got, len(want.GradFirst[name])) {
				modeltest.Near(t, fmt.Sprintf("gradient of %s at %d", name, i), float64(x), want.GradFirst[name][i], 1e-5, scale)
			}
		}
	}
	modeltest.Near(t, "norm of all gradients", math.Sqrt(total), want.GradNorm, 1e-5, 0)
}

// matchTraining takes ten steps of AdamW, which turns gradients that are nothing
// but rounding (those of the keys' biases) into steps of full size: so the norms
// of parameters are not as close as those of gradients.
func matchTraining(t *testing.T, r *modeltest.Rig, g golden) {
	ops := r.Env.Ops.(*cpu.Ops)
	b, want := g.batch(), g.Float64
	n := float64(count(b))
	var slots []adamw.Slot
	for _, p := range r.Model.Params() {
		s := adamw.Slot{W: r.Weights.Replica.Weight(p), Decay: true}
		for _, to := range []*tensor.Tensor{&s.M, &s.V} {
			var err error
			if *to, err = tensor.Alloc(r.Env.Device, dtype.F32, p.Shape...); err != nil {
				t.Fatal(err)
			}
		}
		slots = append(slots, s)
	}
	for step, loss := range want.Losses {
		modeltest.Near(t, fmt.Sprintf("loss before step %d", step+1), r.Forward(b, false)/n, loss, 1e-4, 0)
		r.Gradients(float32(1/n), b)
		r.Sink.BeginMicroStep()
		for i, p := range r.Model.Params() {
			slots[i].G, _ = r.Sink.Get(p)
		}
		ops.AdamW(r.Env.Stream, slots, adamw.Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: step + 1})
		r.Wait()
	}
	for _, p := range r.Model.Params() {
		p.EachPart(func(part param.Part, from, to int) {
			modeltest.Near(t, "norm of "+part.Name, modeltest.Norm(r.Weights.Replica.Weight(p).F32()[from:to]), want.ParamNorms[part.Name], 1e-4, 0)
		})
	}
}

// The story is that of the model's author, byte for byte: with the cache, and
// read from its beginning for every token.
func TestStoryByteForByte(t *testing.T) {
	dir := filepath.Dir(testenv.Data(t, "stories260K/greedy_expected.json"))
	var want struct {
		IDs []int32 `json:"ids"`
	}
	decode(t, filepath.Join(dir, "greedy_expected.json"), &want)
	text, err := os.ReadFile(filepath.Join(dir, "expected_stdout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, dir, 1, 64) // less than the story, so that it is read in pieces
	g := sample.Generator{Generator: r.Model.(models.Generator), Env: r.Env, Weights: r.Weights}
	got, err := sample.Text(t.Context(), g, tok, "", sample.Options{MaxTokens: len(want.IDs) - 1})
	if err != nil || got != string(text) {
		t.Errorf("with the cache: %v\n got %q\nwant %q", err, got, text)
	}
	ids := want.IDs[:1:1]
	for len(ids) < len(want.IDs) {
		r.Reset(len(ids))
		logits := r.Logits(ids)
		ids = append(ids, int32(slices.Index(logits, slices.Max(logits))))
	}
	if !slices.Equal(ids, want.IDs) {
		t.Errorf("read anew for every token:\n got %v\nwant %v", ids, want.IDs)
	}
}
