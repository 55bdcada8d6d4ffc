// Package gpt2 is the GPT-2 family of language models: learned positions,
// pre-norm blocks with LayerNorm, multi-head attention and a GELU feed-forward
// network, biases everywhere, and a head tied to the embedding or of its own.
// There is no dropout.
//
// Letters are those of package models; F is the feed-forward size.
package gpt2

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Config is the shape of a model.
type Config struct {
	Vocab, Hidden, Layers, Heads int
	FFN                          int // 0: 4 * Hidden
	MaxPositions                 int // the longest text
	NormEps                      float32
	DType                        dtype.DType // of weights and activations; invalid: f32
	Tied                         bool        // the head is the embedding
}

// complete fills in FFN and returns an error that lists all that is wrong.
func (c Config) complete() (Config, error) {
	var errs []error
	if c.DType == dtype.Invalid {
		c.DType = dtype.F32
	}
	if c.FFN == 0 {
		c.FFN = 4 * c.Hidden
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"vocabulary", c.Vocab}, {"hidden size", c.Hidden}, {"number of layers", c.Layers}, {"number of heads", c.Heads},
		{"feed-forward size", c.FFN}, {"longest text", c.MaxPositions},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("gpt2: the %s is %d; it must be positive", f.name, f.value))
		}
	}
	if !(c.NormEps > 0) {
		errs = append(errs, fmt.Errorf("gpt2: the normalisation's epsilon is %v; it must be positive", c.NormEps))
	}
	if c.Heads > 0 && c.Hidden%c.Heads != 0 {
		errs = append(errs, fmt.Errorf("gpt2: a hidden size of %d does not split into %d heads", c.Hidden, c.Heads))
	}
	return c, errors.Join(errs...)
}
