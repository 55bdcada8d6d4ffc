package llama

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
// residual stream start smaller by sqrt(2 * layers), one for each such addition,
// so that the stream's variance does not grow with depth (GPT-2, section 2.3).
const initStd = 0.02

// block is one layer. Its parameters are block 1 + its index.
type block struct {
	norm1, norm2   layer.RMSNorm
	q, k, v, o     layer.Linear
	gate, up, down layer.Linear
}

// layers is the model's parts, and params their parameters in forward order.
//
// Block 0 is the embedding, 1 to L are the layers, L+1 is the final norm and the
// head. A tied head has no parameter in L+1: its use is bracketed by block 0's.
type layers struct {
	params []*param.Param
	embed  layer.Embedding
	blocks []block
	norm   layer.RMSNorm
	head   *param.Param
}

func newLayers(c Config) layers {
	var m layers
	add := func(blk int, name string, shape ...int) *param.Param {
		p := &param.Param{Name: name, Shape: shape, DType: dtype.F32, Block: blk, NoDecay: len(shape) == 1}
		m.params = append(m.params, p)
		return p
	}
	m.embed.Table = add(0, "model.embed_tokens.weight", c.Vocab, c.Hidden)
	for i := range c.Layers {
		norm := func(name string) layer.RMSNorm {
			return layer.RMSNorm{Weight: add(1+i, fmt.Sprintf("model.layers.%d.%s.weight", i, name), c.Hidden), Eps: c.NormEps}
		}
		linear := func(name string, out, in int, bias bool) layer.Linear {
			name = fmt.Sprintf("model.layers.%d.%s", i, name)
			l := layer.Linear{Weight: add(1+i, name+".weight", out, in)}
			if bias {
				l.Bias = add(1+i, name+".bias", out)
			}
			return l
		}
		q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
		m.blocks = append(m.blocks, block{
			norm1: norm("input_layernorm"),
			q:     linear("self_attn.q_proj", q, c.Hidden, c.QKVBias),
			k:     linear("self_attn.k_proj", kv, c.Hidden, c.QKVBias),
			v:     linear("self_attn.v_proj", kv, c.Hidden, c.QKVBias),
			o:     linear("self_attn.o_proj", c.Hidden, q, false),
			norm2: norm("post_attention_layernorm"),
			gate:  linear("mlp.gate_proj", c.FFN, c.Hidden, false),
			up:    linear("mlp.up_proj", c.FFN, c.Hidden, false),
			down:  linear("mlp.down_proj", c.Hidden, c.FFN, false),
		})
	}
	m.norm = layer.RMSNorm{Weight: add(1+c.Layers, "model.norm.weight", c.Hidden), Eps: c.NormEps}
	m.head = m.embed.Table
	if !c.Tied {
		m.head = add(1+c.Layers, "lm_head.weight", c.Vocab, c.Hidden)
	}
	return m
}

// Params lists the parameters of a model of shape c in the order in which
// forward first uses them, named as Hugging Face does.
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
	case strings.HasSuffix(p.Name, ".o_proj.weight"), strings.HasSuffix(p.Name, ".down_proj.weight"):
		std /= math.Sqrt(float64(2 * m.cfg.Layers))
	}
	models.NewRand(seed, p.Name).Normal(out, std)
}
