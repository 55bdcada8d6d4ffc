package decoder_test

import (
	"testing"

	"github.com/gorun-dev/gorun/models/gpt2"
	"github.com/gorun-dev/gorun/models/llama"
)

// The usual count: six operations for each weight that is multiplied, and attention.
func TestFLOPs(t *testing.T) {
	const v, c, l, h, k, d, f, text = 1000, 64, 3, 4, 2, 16, 100, 128
	attention := 6.0 * l * h * d * text
	block := float64((h+2*k)*d*c + h*d*c + 3*f*c)
	for _, tied := range []bool{true, false} {
		s, err := llama.Describe(llama.Config{Vocab: v, Hidden: c, Layers: l, Heads: h, KVHeads: k, FFN: f, MaxPositions: text,
			RopeTheta: 1e4, NormEps: 1e-5, Tied: tied})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := s.FLOPs(text), 6*(l*block+v*c)+attention; got != want {
			t.Errorf("llama, tied %t: %v, want %v", tied, got, want)
		}
		for _, p := range s.Params() {
			p.Frozen = p.Block == 2 // the second layer
		}
		if got, want := s.FLOPs(text), 6*(l*block+v*c)-2*block+attention; got != want {
			t.Errorf("llama with a frozen layer: %v, want %v", got, want)
		}
	}
	// Heads of a size of their own; their norms are no products.
	q, err := llama.Describe(llama.Config{Vocab: v, Hidden: c, Layers: l, Heads: h, KVHeads: k, HeadDim: 2 * d, FFN: f, MaxPositions: text,
		RopeTheta: 1e4, NormEps: 1e-5, QKNorm: true, Tied: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := q.FLOPs(text), 6*(l*(block+float64((h+2*k)*d*c+h*d*c))+v*c)+2*attention; got != want {
		t.Errorf("qwen3: %v, want %v", got, want)
	}
	s, err := gpt2.Describe(gpt2.Config{Vocab: v, Hidden: c, Layers: l, Heads: h, MaxPositions: text, NormEps: 1e-5, Tied: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.FLOPs(text), 6.0*(l*12*c*c+v*c)+attention; got != want {
		t.Errorf("gpt2: %v, want %v", got, want)
	}
}
