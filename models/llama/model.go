package llama

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// block is one layer. Its parameters are block 1 + its index.
type block struct {
	norm1, norm2   layer.RMSNorm
	q, k, v, o     layer.Linear
	gate, up, down layer.Linear
}

// family is the parts of a model. It implements decoder.Family.
type family struct {
	embed    layer.Embedding
	blocks   []block
	cos, sin tensor.Tensor // the tables of rotary positions [P, D/2]
}

// Describe lays out a model of shape c. Its parameters are named as Hugging Face
// does.
func Describe(c Config) (*decoder.Spec, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	f := &family{}
	s := &decoder.Spec{
		Name: "llama", Family: f,
		Shape: decoder.Shape{
			Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			FFN: c.FFN, MaxPositions: c.MaxPositions, Gated: true, Tied: c.Tied,
		},
		Residual: []string{".o_proj.weight", ".down_proj.weight"},
		Fill:     func() { c.rope(f.cos.F32(), f.sin.F32()) },
	}
	s.AddTable(&f.cos, "rope.cos", dtype.F32, c.MaxPositions, c.HeadDim/2)
	s.AddTable(&f.sin, "rope.sin", dtype.F32, c.MaxPositions, c.HeadDim/2)
	f.embed.Table = s.Add(0, "model.embed_tokens.weight", c.Vocab, c.Hidden)
	for i := range c.Layers {
		norm := func(name string) layer.RMSNorm {
			return layer.RMSNorm{Weight: s.Add(1+i, fmt.Sprintf("model.layers.%d.%s.weight", i, name), c.Hidden), Eps: c.NormEps}
		}
		linear := func(name string, out, in int, bias bool) layer.Linear {
			name = fmt.Sprintf("model.layers.%d.%s", i, name)
			l := layer.Linear{Weight: s.Add(1+i, name+".weight", out, in)}
			if bias {
				l.Bias = s.Add(1+i, name+".bias", out)
			}
			return l
		}
		q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
		f.blocks = append(f.blocks, block{
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
	s.Norm = layer.RMSNorm{Weight: s.Add(1+c.Layers, "model.norm.weight", c.Hidden), Eps: c.NormEps}
	s.AddHead("lm_head.weight", f.embed.Table)
	return s, nil
}

// New builds a model of shape c and allocates its memory: activations for the
// environment's largest micro-batch, and the tables of positions.
func New(c Config, env models.Env) (*decoder.Model, error) {
	s, err := Describe(c)
	if err != nil {
		return nil, err
	}
	return decoder.New(s, env)
}

// rope fills the tables of rotary positions: angle(p, i) = p * theta^(-2i/D),
// computed in f64.
func (c Config) rope(cos, sin []float32) {
	half := c.HeadDim / 2
	for i := range half {
		frequency := math.Pow(c.RopeTheta, -float64(2*i)/float64(c.HeadDim))
		for p := range c.MaxPositions {
			s, co := math.Sincos(float64(p) * frequency)
			cos[p*half+i], sin[p*half+i] = float32(co), float32(s)
		}
	}
}
