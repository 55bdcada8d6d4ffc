// Package llama is the Llama family of language models, Mistral, Qwen2, Qwen2.5 and
// Qwen3 included: pre-norm blocks of grouped-query attention with rotary positions
// and a SwiGLU feed-forward network, with or without biases on queries, keys and
// values, with or without a normalisation of each head of queries and of keys, and
// with a head of its own or tied to the embedding.
//
// Letters are those of package models.
package llama

import (
	"errors"
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Config is the shape of a model.
type Config struct {
	Vocab, Hidden, Layers int
	Heads, KVHeads        int // KVHeads divides Heads
	HeadDim               int // even; 0: Hidden / Heads
	FFN                   int
	MaxPositions          int // the longest text
	RopeTheta             float64
	RopeScaling           *RopeScaling // nil: none
	NormEps               float32
	DType                 dtype.DType // of weights and activations; invalid: f32
	QKVBias               bool        // biases on queries, keys and values, as Qwen2 has
	QKNorm                bool        // each head of queries and of keys is normalised before it turns, as Qwen3's are
	Tied                  bool        // the head is the embedding
}

// RopeScaling stretches the rotary positions of models that were trained on shorter
// texts, as Llama 3.1 does (rope_type "llama3"): by wavelength, so for texts of every
// length. Wavelengths above Original/Low positions are Factor times as long, those below
// Original/High stay, and in between it goes from one to the other.
type RopeScaling struct {
	Factor, Low, High float64
	Original          int // positions
}

// stretch is the frequency, in radians a position, that takes another's place.
func (s *RopeScaling) stretch(frequency float64) float64 {
	if s == nil {
		return frequency
	}
	turns := float64(s.Original) * frequency / (2 * math.Pi) // within the original length
	kept := min(max((turns-s.Low)/(s.High-s.Low), 0), 1)
	return frequency * (kept + (1-kept)/s.Factor)
}

// complete fills in HeadDim and returns an error that lists all that is wrong.
func (c Config) complete() (Config, error) {
	if c.DType == dtype.Invalid {
		c.DType = dtype.F32
	}
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("llama: "+format, args...))
		}
	}
	for _, f := range []struct {
		name        string
		value, most int // as train.yaml has them: a damaged config.json asks for no more memory
	}{
		{"vocabulary", c.Vocab, 1e7}, {"hidden size", c.Hidden, 1e5}, {"number of layers", c.Layers, 1e3}, {"number of heads", c.Heads, 1e4},
		{"number of key and value heads", c.KVHeads, 1e4}, {"feed-forward size", c.FFN, 1e6}, {"longest text", c.MaxPositions, 1e7},
	} {
		check(f.value > 0 && f.value <= f.most, "the %s is %d; it must be positive, and %d at most", f.name, f.value, f.most)
	}
	if s := c.RopeScaling; s != nil {
		check(s.Factor >= 1 && s.Low > 0 && s.High > s.Low && s.Original > 0,
			"rotary positions scaled by %v between %v and %v turns within %d positions; the factor must be 1 at least, and the turns positive and rising", s.Factor, s.Low, s.High, s.Original)
	}
	check(c.RopeTheta > 0, "the rotary base is %v; it must be positive", c.RopeTheta)
	check(c.NormEps > 0, "the normalisation's epsilon is %v; it must be positive", c.NormEps)
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	check(c.Heads%c.KVHeads == 0, "%d heads cannot share %d key and value heads evenly", c.Heads, c.KVHeads)
	if c.HeadDim == 0 {
		check(c.Hidden%c.Heads == 0, "a hidden size of %d does not split into %d heads; give the head size", c.Hidden, c.Heads)
		c.HeadDim = c.Hidden / c.Heads
	}
	check(c.HeadDim > 0 && c.HeadDim <= 1e4 && c.HeadDim%2 == 0, "a head size of %d; rotary positions need a positive even one, 10000 at most", c.HeadDim)
	return c, errors.Join(errs...)
}
