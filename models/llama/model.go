package llama

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// block is one layer. Its parameters are block 1 + its index.
type block struct {
	norm1, norm2 layer.RMSNorm
	qkv, o       layer.Linear  // queries, keys and values in one
	heads        *layer.QKNorm // nil: none
	up, down     layer.Linear  // gate and up in one
}

// family is the parts of a model. It implements decoder.Family.
type family struct {
	embed    layer.Embedding
	blocks   []block
	cos, sin tensor.Tensor // the tables of rotary positions [P, D/2]
	turning  int           // heads that have positions: of queries and keys
}

// Describe lays out a model of shape c. Its parameters are named as Hugging Face
// does; merged ones are named after vLLM's, and their parts as in files.
func Describe(c Config) (*decoder.Spec, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	f := &family{turning: c.Heads + c.KVHeads}
	s := &decoder.Spec{
		Name: "llama", Family: f,
		Shape: decoder.Shape{
			DType: c.DType,
			Vocab: c.Vocab, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			FFN: c.FFN, MaxPositions: c.MaxPositions, Gated: true, QKNorm: c.QKNorm, Tied: c.Tied,
		},
		Residual: []string{".o_proj.weight", ".down_proj.weight"},
	}
	s.AddTable(&f.cos, "rope.cos", dtype.F32, c.angles(math.Cos), c.MaxPositions, c.HeadDim/2)
	s.AddTable(&f.sin, "rope.sin", dtype.F32, c.angles(math.Sin), c.MaxPositions, c.HeadDim/2)
	f.embed.Table = s.Add(0, "model.embed_tokens.weight", c.Vocab, c.Hidden)
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for i := range c.Layers {
		prefix := fmt.Sprintf("model.layers.%d.", i)
		norm := func(name string) layer.RMSNorm {
			return layer.RMSNorm{Weight: s.Add(1+i, prefix+name+".weight", c.Hidden), Eps: c.NormEps}
		}
		linear := func(name string, out, in int) layer.Linear {
			return layer.Linear{Weight: s.Add(1+i, prefix+name+".weight", out, in)}
		}
		heads := func() []param.Part {
			return []param.Part{{Name: "q_proj", Rows: q}, {Name: "k_proj", Rows: kv}, {Name: "v_proj", Rows: kv}}
		}
		var b block
		b.norm1 = norm("input_layernorm")
		b.qkv.Weight = s.AddMerged(1+i, prefix+"self_attn.", "qkv_proj", ".weight", c.Hidden, heads()...)
		if c.QKVBias {
			b.qkv.Bias = s.AddMerged(1+i, prefix+"self_attn.", "qkv_proj", ".bias", 0, heads()...)
		}
		if c.QKNorm {
			weight := func(name string) *param.Param { return s.Add(1+i, prefix+"self_attn."+name+".weight", c.HeadDim) }
			b.heads = &layer.QKNorm{Queries: weight("q_norm"), Keys: weight("k_norm"), Heads: c.Heads, Eps: c.NormEps}
		}
		b.o = linear("self_attn.o_proj", c.Hidden, q)
		b.norm2 = norm("post_attention_layernorm")
		b.up.Weight = s.AddMerged(1+i, prefix+"mlp.", "gate_up_proj", ".weight", c.Hidden,
			param.Part{Name: "gate_proj", Rows: c.FFN}, param.Part{Name: "up_proj", Rows: c.FFN})
		b.down = linear("mlp.down_proj", c.Hidden, c.FFN)
		f.blocks = append(f.blocks, b)
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

// angles fills a table of rotary positions with f(angle), angle(p, i) =
// p * theta^(-2i/D), stretched where positions are, and computed in f64.
func (c Config) angles(f func(float64) float64) func(tensor.Tensor) {
	return func(host tensor.Tensor) {
		half, out := c.HeadDim/2, host.F32()
		for i := range half {
			frequency := c.RopeScaling.stretch(math.Pow(c.RopeTheta, -float64(2*i)/float64(c.HeadDim)))
			for p := range c.MaxPositions {
				out[p*half+i] = float32(f(float64(p) * frequency))
			}
		}
	}
}
