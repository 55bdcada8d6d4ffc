package lora

import (
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
)

// at places a batch in a training step.
func at(b models.Batch, step, sample int) models.Batch {
	b.Step, b.Sample = step, sample
	return b
}

var dropping = Config{R: 3, Dropout: 0.4, Seed: 11}

// With dropout the gradients are still the slopes of the loss, that of the elements
// which the step drops.
func TestGradientsWithDropout(t *testing.T) {
	for name, of := range families {
		t.Run(name, func(t *testing.T) {
			const h, tol = 5e-3, 1e-3 // the fourth power of h and f32's rounding leave about 1e-4
			build, _ := adapted(of, dropping, false)
			r := modeltest.New(t, 2, 7, build)
			b := at(modeltest.RandomBatch(3, 2, 7, vocab), 5, 2)
			grads := r.Gradients(1, b)
			for _, p := range r.Model.Params() {
				if p.Frozen {
					continue
				}
				r.Gradients(1, b)
				g, w := slices.Clone(r.Sink.Grad(p)), r.Weights.Replica.Weight(p).F32()
				norm, before := modeltest.Norm(g), slices.Clone(w)
				loss := func(x float64) float64 {
					for i := range w {
						w[i] = float32(float64(before[i]) + x*float64(g[i])/norm)
					}
					r.Gradients(1, b)
					return r.Loss
				}
				slope := (8*(loss(h)-loss(-h)) - (loss(2*h) - loss(-2*h))) / (12 * h)
				copy(w, before)
				modeltest.Near(t, p.Name, norm, slope, tol, norm)
			}
			for name, g := range r.Gradients(1, b) {
				if !slices.Equal(g, grads[name]) {
					t.Errorf("%s: the gradient differs from run to run", name)
				}
			}
		})
	}
}

// What is dropped does not depend on how a step's batch is split, and changes with the
// step, the sample, the seed and the layer.
func TestDropoutDoesNotDependOnTheSplit(t *testing.T) {
	const sequences, positions, step = 4, 6, 9
	build, _ := adapted(tinyLlama, dropping, false)
	r := modeltest.New(t, sequences, positions, build)
	whole := modeltest.RandomBatch(7, sequences, positions, vocab)
	part := func(from, to int) models.Batch { return at(modeltest.Part(whole, from, to, positions), step, 8+from) }
	want := r.Gradients(0.5, at(whole, step, 8))
	loss := r.Loss
	for how, batches := range map[string][]models.Batch{
		"two halves":     {part(0, 2), part(2, 4)},
		"backwards":      {part(3, 4), part(0, 3)},
		"four sequences": {part(0, 1), part(1, 2), part(2, 3), part(3, 4)},
	} {
		for name, g := range r.Gradients(0.5, batches...) {
			modeltest.NearAll(t, how+": "+name, g, want[name], 2e-5)
		}
		modeltest.Near(t, how+": loss", r.Loss, loss, 1e-6, 1)
	}
	for how, b := range map[string]models.Batch{"step": at(whole, step+1, 8), "sample": at(whole, step, 7)} {
		for name, g := range r.Gradients(0.5, b) {
			if d := distance(g, want[name]); d < 1e-2 {
				t.Errorf("another %s drops the same: the gradient of %s changes by %v", how, name, d)
			}
		}
	}
	seeded := dropping
	seeded.Seed++
	build, _ = adapted(tinyLlama, seeded, false)
	again := modeltest.New(t, sequences, positions, build)
	for name, g := range again.Gradients(0.5, at(whole, step, 8)) {
		if d := distance(g, want[name]); d < 1e-2 {
			t.Errorf("another seed drops the same: the gradient of %s changes by %v", name, d)
		}
	}
}

// distance is the norm of a-b over that of b.
func distance(a, b []float32) float64 {
	d := slices.Clone(a)
	for i := range d {
		d[i] -= b[i]
	}
	return modeltest.Norm(d) / modeltest.Norm(b)
}

// Evaluation and sampling drop nothing.
func TestEvaluationDropsNothing(t *testing.T) {
	plain := dropping
	plain.Dropout = 0
	var losses [2]float64
	var logits [2][]float32
	for i, c := range []Config{dropping, plain} {
		build, _ := adapted(tinyGPT2, c, false)
		r := modeltest.New(t, 2, 7, build)
		losses[i] = r.Forward(at(modeltest.RandomBatch(3, 2, 7, vocab), 5, 2), false)
		r.Reset(7)
		logits[i] = r.Logits([]int32{3, 1, 4, 1, 5, 9, 2})
	}
	if losses[0] != losses[1] || !slices.Equal(logits[0], logits[1]) {
		t.Errorf("losses %v, or the logits differ", losses)
	}
}

// What the backward pass computes again is dropped again.
func TestRecomputationDropsTheSame(t *testing.T) {
	b, c := at(modeltest.RandomBatch(3, 2, 7, vocab), 3, 0), at(modeltest.RandomBatch(4, 1, 5, vocab), 3, 2)
	for name, of := range families {
		var want map[string][]float32
		for _, how := range []models.Recompute{models.KeepAll, models.RecomputeNorms, models.RecomputeBlocks} {
			build, _ := adapted(of, dropping, true)
			r := modeltest.New(t, 2, 7, func(e models.Env) (models.Model, error) {
				e.Recompute = how
				return build(e)
			})
			got := r.Gradients(0.5, b, c)
			if want == nil {
				want = got
			}
			for part, g := range got {
				if !slices.Equal(g, want[part]) {
					t.Errorf("%s: recompute %d changes the gradient of %s", name, how, part)
				}
			}
		}
	}
}
