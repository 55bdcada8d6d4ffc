package gpt2

import (
	"fmt"
	"math"
	"strings"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// initStd is the deviation of initial weights. Projections back into the
// residual stream start smaller by sqrt(2 * layers), one for each such addition
// (GPT-2, section 2.3).
const initStd = 0.02

// block is one layer. Its parameters are block 1 + its index.
type block struct {
	norm1, norm2 layer.LayerNorm
	qkv          layer.Fused
	out          layer.Linear // of attention
	up, down     layer.Linear // of the feed-forward network
}

// layers is the model's parts, and params their parameters in forward order.
//
// Block 0 is the embeddings, 1 to L are the layers, L+1 is the final norm and
// the head. A tied head has no parameter in L+1: its use is bracketed by block
// 0's.
type layers struct {
	params            []*param.Param
	tokens, positions layer.Embedding
	blocks            []block
	norm              layer.LayerNorm
	head              *param.Param
}

func newLayers(c Config) layers {
	var m layers
	add := func(blk int, name string, shape ...int) *param.Param {
		p := &param.Param{Name: name, Shape: shape, DType: dtype.F32, Block: blk, NoDecay: len(shape) == 1}
		m.params = append(m.params, p)
		return p
	}
	norm := func(blk int, name string) layer.LayerNorm {
		return layer.LayerNorm{Weight: add(blk, name+".weight", c.Hidden), Bias: add(blk, name+".bias", c.Hidden), Eps: c.NormEps}
	}
	m.tokens.Table = add(0, "transformer.wte.weight", c.Vocab, c.Hidden)
	m.positions.Table = add(0, "transformer.wpe.weight", c.MaxPositions, c.Hidden)
	for i := range c.Layers {
		prefix := fmt.Sprintf("transformer.h.%d.", i)
		linear := func(name string, out, in int) layer.Linear {
			return layer.Linear{Weight: add(1+i, prefix+name+".weight", out, in), Bias: add(1+i, prefix+name+".bias", out)}
		}
		m.blocks = append(m.blocks, block{
			norm1: norm(1+i, prefix+"ln_1"),
			qkv:   layer.Fused(linear("attn.c_attn", 3*c.Hidden, c.Hidden)),
			out:   linear("attn.c_proj", c.Hidden, c.Hidden),
			norm2: norm(1+i, prefix+"ln_2"),
			up:    linear("mlp.c_fc", c.FFN, c.Hidden),
			down:  linear("mlp.c_proj", c.Hidden, c.FFN),
		})
	}
	m.norm = norm(1+c.Layers, "transformer.ln_f")
	m.head = m.tokens.Table
	if !c.Tied {
		m.head = add(1+c.Layers, "lm_head.weight", c.Vocab, c.Hidden)
	}
	return m
}

// Params lists the parameters of a model of shape c in the order in which
// forward first uses them, named as Hugging Face does. The weights of all affine
// maps are [O,I]; Hugging Face's files hold those of the layers transposed.
func Params(c Config) ([]*param.Param, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return newLayers(c).params, nil
}

// Init fills out with p's initial value: ones for norms, zeros for biases,
// normal numbers for the rest.
func (m *Model) Init(p *param.Param, seed uint64, out []float32) {
	std := initStd
	switch {
	case strings.HasSuffix(p.Name, ".bias"):
		clear(out)
		return
	case p.NoDecay: // the weight of a norm
		for i := range out {
			out[i] = 1
		}
		return
	case strings.HasSuffix(p.Name, ".c_proj.weight"):
		std /= math.Sqrt(float64(2 * m.cfg.Layers))
	}
	models.NewRand(seed, p.Name).Normal(out, std)
}
