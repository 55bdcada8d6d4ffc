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
		name        string
		value, most int // as train.yaml has them: a damaged config.json asks for no more memory
	}{
		{"vocabulary", c.Vocab, 1e7}, {"hidden size", c.Hidden, 1e5}, {"number of layers", c.Layers, 1e3}, {"number of heads", c.Heads, 1e4},
		{"feed-forward size", c.FFN, 1e6}, {"longest text", c.MaxPositions, 1e7},
	} {
		if f.value < 1 || f.value > f.most {
			errs = append(errs, fmt.Errorf("gpt2: the %s is %d; it must be positive, and %d at most", f.name, f.value, f.most))
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
