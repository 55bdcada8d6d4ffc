package gpt2

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
)

// block is one layer. Its parameters are block 1 + its index.
type block struct {
	norm1, norm2 layer.LayerNorm
	qkv, out     layer.Linear // of attention
	up, down     layer.Linear // of the feed-forward network
}

// family is the parts of a model. It implements decoder.Family.
type family struct {
	tokens    layer.Embedding
	positions layer.Positions
	blocks    []block
}

// Describe lays out a model of shape c. Its parameters are named as Hugging Face
// does. The weights of all affine maps are [O,I]; Hugging Face's files hold those
// of the layers transposed.
func Describe(c Config) (*decoder.Spec, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	f := &family{}
	s := &decoder.Spec{
		Name: "gpt2", Family: f,
		Shape: decoder.Shape{
			DType: c.DType,
			Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.Heads, HeadDim: c.Hidden / c.Heads,
			FFN: c.FFN, MaxPositions: c.MaxPositions, LayerNorm: true, Tied: c.Tied,
		},
		Residual: []string{".c_proj.weight"},
	}
	norm := func(blk int, name string) layer.LayerNorm {
		return layer.LayerNorm{Weight: s.Add(blk, name+".weight", c.Hidden), Bias: s.Add(blk, name+".bias", c.Hidden), Eps: c.NormEps}
	}
	f.tokens.Table = s.Add(0, "transformer.wte.weight", c.Vocab, c.Hidden)
	f.positions.Table = s.Add(0, "transformer.wpe.weight", c.MaxPositions, c.Hidden)
	for i := range c.Layers {
		prefix := fmt.Sprintf("transformer.h.%d.", i)
		linear := func(name string, out, in int) layer.Linear {
			return layer.Linear{Weight: s.Add(1+i, prefix+name+".weight", out, in), Bias: s.Add(1+i, prefix+name+".bias", out)}
		}
		f.blocks = append(f.blocks, block{
			norm1: norm(1+i, prefix+"ln_1"),
			qkv:   linear("attn.c_attn", 3*c.Hidden, c.Hidden),
			out:   linear("attn.c_proj", c.Hidden, c.Hidden),
			norm2: norm(1+i, prefix+"ln_2"),
			up:    linear("mlp.c_fc", c.FFN, c.Hidden),
			down:  linear("mlp.c_proj", c.Hidden, c.FFN),
		})
	}
	s.Norm = norm(1+c.Layers, "transformer.ln_f")
	s.AddHead("lm_head.weight", f.tokens.Table)
	return s, nil
}

// New builds a model of shape c and allocates its memory: activations for the
// environment's largest micro-batch.
func New(c Config, env models.Env) (*decoder.Model, error) {
	s, err := Describe(c)
	if err != nil {
		return nil, err
	}
	return decoder.New(s, env)
}
