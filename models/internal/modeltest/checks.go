package modeltest

import (
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
)

// Checks runs all that must hold of a model, whatever its family, on one with the
// given vocabulary. tied says that the head is of block 0.
func Checks(t *testing.T, vocab int, tied bool, build Build) {
	t.Run("gradients are the slopes of the loss", func(t *testing.T) { differences(t, vocab, build) })
	t.Run("micro-steps add up", func(t *testing.T) { accumulation(t, vocab, build) })
	t.Run("blocks and gradients come in order", func(t *testing.T) { protocol(t, vocab, tied, build) })
	t.Run("reading in pieces gives the same logits", func(t *testing.T) { pieces(t, build) })
	t.Run("recomputing changes no bit", func(t *testing.T) { recompute(t, vocab, build) })
	t.Run("documents are texts of their own", func(t *testing.T) { documents(t, vocab, build) })
	t.Run("backward needs its forward", func(t *testing.T) { kept(t, vocab, build) })
}

// differences compares each parameter's gradient with central differences of
// the loss, along a direction that is half the gradient itself, where the signal
// is largest, and half random, where a missing part shows.
//
// The loss is f32 within, so its differences carry about 1e-7 of it over h; the
// stencil of four points allows an h so large that 2e-3 of the slope is safe.
func differences(t *testing.T, vocab int, build Build) {
	const h, tol = 2e-2, 2e-3
	r := New(t, 2, 7, build)
	b := RandomBatch(3, 2, 7, vocab)
	r.Gradients(1, b)
	for _, p := range r.Model.Params() {
		g, w := r.Sink.Grad(p), r.Weights.Replica.Weight(p).F32()
		dir := make([]float32, len(g))
		models.NewRand(5, p.Name).Normal(dir, 1)
		gn, dn := Norm(g), Norm(dir)
		if gn == 0 {
			t.Errorf("%s has no gradient", p.Name)
			continue
		}
		for i := range dir {
			dir[i] = float32(float64(g[i])/gn/2 + float64(dir[i])/dn/2)
		}
		before := slices.Clone(w)
		at := func(x float64) float64 {
			for i := range w {
				w[i] = float32(float64(before[i]) + x*float64(dir[i]))
			}
			return r.Forward(b, false)
		}
		slope := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		copy(w, before)
		Near(t, p.Name, Dot(g, dir), slope, tol, gn/4)
	}
}

// accumulation checks that micro-steps add up to one batch, that a batch smaller
// than the environment's works in the same memory, and that scale scales.
func accumulation(t *testing.T, vocab int, build Build) {
	r := New(t, 4, 6, build)
	b := RandomBatch(7, 4, 6, vocab)
	whole := r.Gradients(0.5, b)
	split := map[string]map[string][]float32{
		"two halves":      r.Gradients(0.5, Part(b, 0, 2, 6), Part(b, 2, 4, 6)),
		"three and one":   r.Gradients(0.5, Part(b, 0, 3, 6), Part(b, 3, 4, 6)),
		"four sequences":  r.Gradients(0.5, Part(b, 0, 1, 6), Part(b, 1, 2, 6), Part(b, 2, 3, 6), Part(b, 3, 4, 6)),
		"again, the same": r.Gradients(0.5, b),
	}
	for how, got := range split {
		for name, g := range got {
			// f32 sums in another order; those of nearly cancelling rows lose most.
			NearAll(t, how+": "+name, g, whole[name], 2e-5)
			if how == "again, the same" && !slices.Equal(g, whole[name]) {
				t.Errorf("%s differs from run to run", name)
			}
		}
	}
	for name, g := range r.Gradients(1, b) {
		for i := range g {
			g[i] /= 2
		}
		NearAll(t, "half of scale 1: "+name, g, whole[name], 2e-5)
	}

	// Positions behind the last target do not count, nor does their absence.
	short := Part(b, 0, 4, 5)
	masked := RandomBatch(7, 4, 6, vocab)
	for i := 5; i < len(masked.Targets.I32()); i += 6 {
		masked.Targets.I32()[i] = -1
	}
	want := r.Gradients(1, masked)
	for name, g := range r.Gradients(1, short) {
		NearAll(t, "shorter: "+name, g, want[name], 2e-5)
	}
	r.Gradients(1, b)
	Near(t, "evaluation", r.Forward(b, false), r.Loss, 0, 1)
	Near(t, "sum of parts", r.Forward(Part(b, 0, 1, 6), false)+r.Forward(Part(b, 1, 4, 6), false), r.Forward(b, false), 1e-6, 1)
}

// recompute checks that what the backward pass computes again is what was not
// kept, bit by bit, and that it saves memory.
func recompute(t *testing.T, vocab int, build Build) {
	b, c := RandomBatch(3, 2, 7, vocab), RandomBatch(4, 1, 5, vocab)
	var want map[string][]float32
	var bytes int64
	for _, how := range []models.Recompute{models.KeepAll, models.RecomputeNorms, models.RecomputeBlocks} {
		r := New(t, 2, 7, func(e models.Env) (models.Model, error) {
			e.Recompute = how
			return build(e)
		})
		got := r.Gradients(0.5, b, c)
		if want == nil {
			want, bytes = got, r.Model.Bytes()
			continue
		}
		if r.Model.Bytes() >= bytes {
			t.Errorf("recompute %d takes %d bytes, without it or with less of it %d", how, r.Model.Bytes(), bytes)
		}
		bytes = r.Model.Bytes()
		for name, g := range got {
			if !slices.Equal(g, want[name]) {
				t.Errorf("recompute %d changes the gradient of %s", how, name)
			}
		}
	}
}

// documents checks that two documents in one sequence give the losses and
// gradients of two sequences. The second one's positions go on, which rotary
// positions do not see; so it is for models whose parameters know no positions.
func documents(t *testing.T, vocab int, build Build) {
	r := New(t, 2, 8, build)
	for _, p := range r.Model.Params() {
		if strings.HasSuffix(p.Name, "wpe.weight") {
			t.Skip("learned positions tell where in its sequence a document lies")
		}
	}
	parts := RandomBatch(5, 2, 4, vocab)
	want := r.Gradients(1, parts)
	loss := r.Loss
	packed := Batch(1, 8, parts.Tokens.I32(), parts.Targets.I32())
	packed.Docs = models.Ints([]int32{0, 0, 0, 0, 4, 4, 4, 4})
	for name, g := range r.Gradients(1, packed) {
		NearAll(t, name, g, want[name], 2e-5)
	}
	Near(t, "loss", r.Loss, loss, 1e-6, 1)
}
