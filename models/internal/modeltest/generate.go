package modeltest

import (
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Logits are the logits behind the last of tokens, which r's model reads
// further.
func (r *Rig) Logits(tokens []int32) []float32 {
	r.t.Helper()
	out := r.logits()
	if err := r.Model.(models.Generator).Next(r.Weights, tokens, out); err != nil {
		r.t.Fatal(err)
	}
	r.Wait()
	return out.F32()
}

// logits is room for the logits behind one token.
func (r *Rig) logits() tensor.Tensor {
	r.t.Helper()
	out, err := tensor.Alloc(r.Env.Device, dtype.F32, r.Model.(models.Generator).Vocab())
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// Reset makes r's model forget, with room for n tokens.
func (r *Rig) Reset(n int) {
	r.t.Helper()
	if err := r.Model.(models.Generator).Reset(n); err != nil {
		r.t.Fatal(err)
	}
}

// pieces checks that a text gives the same logits however it is read: in one
// go, in pieces, more than the micro-batch holds at once, and after a larger
// cache; and that they belong to the loss that Forward computes.
func pieces(t *testing.T, build Build) {
	r := New(t, 2, 3, build)
	vocab := r.Model.(models.Generator).Vocab()
	text := RandomBatch(11, 1, 13, vocab).Tokens.I32()
	r.Reset(13)
	want := r.Logits(text)
	for _, sizes := range [][]int{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {6, 7}, {12, 1}, {1, 12}} {
		r.Reset(13)
		var got []float32
		rest := text
		for _, n := range sizes {
			got, rest = r.Logits(rest[:n]), rest[n:]
		}
		NearAll(t, "in pieces", got, want, 1e-5)
	}
	r.Reset(15)
	NearAll(t, "with more room", r.Logits(text), want, 1e-5)

	r.Weights.Closed()
	whole := New(t, 1, 13, build)
	targets := make([]int32, 13)
	for i := range targets {
		targets[i] = -1
	}
	targets[12] = 4
	Near(t, "loss", CrossEntropy(want, 4), whole.Forward(Batch(1, 13, text, targets), false), 1e-5, 1)
}
