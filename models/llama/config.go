// Package llama is the Llama family of language models, Qwen2 and Qwen2.5
// included: pre-norm blocks of grouped-query attention with rotary positions and
// a SwiGLU feed-forward network, with or without biases on queries, keys and
// values, and with a head of its own or tied to the embedding.
//
// Letters are those of package models.
package llama

import (
	"errors"
	"fmt"

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
	NormEps               float32
	DType                 dtype.DType // of weights and activations; invalid: f32
	QKVBias               bool        // biases on queries, keys and values, as Qwen2 has
	Tied                  bool        // the head is the embedding
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
		name  string
		value int
	}{
		{"vocabulary", c.Vocab}, {"hidden size", c.Hidden}, {"number of layers", c.Layers}, {"number of heads", c.Heads},
		{"number of key and value heads", c.KVHeads}, {"feed-forward size", c.FFN}, {"longest text", c.MaxPositions},
	} {
		check(f.value > 0, "the %s is %d; it must be positive", f.name, f.value)
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
	check(c.HeadDim > 0 && c.HeadDim%2 == 0, "a head size of %d; rotary positions need a positive even one", c.HeadDim)
	return c, errors.Join(errs...)
}
