package modeltest

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
)

// Golden compares a model with PyTorch's figures in float64 of a file of
// models/testdata, which golden.py there made. build makes the model of the
// file's Config.
func Golden(t *testing.T, file string, build func(config json.RawMessage, e models.Env) (models.Model, error)) {
	var want struct {
		Config          json.RawMessage
		B, T            int
		Tokens, Targets []int32
		Loss            float64
		Logits          []float64
		Params          map[string]struct {
			Norm, GradNorm float64
			GradFirst      []float64
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	r := New(t, want.B, want.T, func(e models.Env) (models.Model, error) { return build(want.Config, e) })
	b := Batch(want.B, want.T, want.Tokens, want.Targets)

	Near(t, "loss", r.Forward(b, false), want.Loss, 1e-6, 0)
	r.Reset(want.T)
	for i, x := range r.Logits(want.Tokens[:want.T]) {
		Near(t, "a logit", float64(x), want.Logits[i], 1e-5, 1)
	}
	grads := r.Gradients(1, b)
	if len(grads) != len(want.Params) {
		t.Errorf("%d gradients, want %d", len(grads), len(want.Params))
	}
	for _, p := range r.Model.Params() {
		p.EachPart(func(part param.Part, from, to int) {
			g, w := grads[part.Name], want.Params[part.Name]
			Near(t, "norm of "+part.Name, Norm(r.Weights.Replica.Weight(p).F32()[from:to]), w.Norm, 1e-6, 0)
			Near(t, "norm of the gradient of "+part.Name, Norm(g), w.GradNorm, 1e-5, 0)
			for i, x := range w.GradFirst {
				Near(t, "gradient of "+part.Name, float64(g[i]), x, 1e-5, w.GradNorm/math.Sqrt(float64(len(g))))
			}
		})
	}
}
