package hf

import (
	"strings"

	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/gpt2"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// gpt2Family is GPT-2, whose files hold the layers' matrices as [I,O], and whose
// names may lack the prefix "transformer.".
type gpt2Family struct{ cfg gpt2.Config }

func (c *settings) gpt2() family {
	cfg := gpt2.Config{
		Vocab: c.integer("vocab_size"), Hidden: c.integer("n_embd"), Layers: c.integer("n_layer"), Heads: c.integer("n_head"),
		FFN:          or(c, "n_inner", 0),
		MaxPositions: c.integer("n_positions"),
		NormEps:      or(c, "layer_norm_epsilon", float32(1e-5)),
		Tied:         or(c, "tie_word_embeddings", true),
	}
	want(c, "activation_function", "gelu_new", "gelu_pytorch_tanh")
	want(c, "scale_attn_weights", true)
	want(c, "scale_attn_by_inverse_layer_idx", false)
	want(c, "add_cross_attention", false)
	c.dropout("attn_pdrop", "embd_pdrop", "resid_pdrop")
	return gpt2Family{cfg}
}

func (g gpt2Family) describe(dt dtype.DType) (*decoder.Spec, error) {
	g.cfg.DType = dt
	return gpt2.Describe(g.cfg)
}

func (g gpt2Family) stored(part string, dims int) (names []string, transposed bool) {
	return []string{part, strings.TrimPrefix(part, "transformer.")}, dims == 2 && strings.HasPrefix(part, "transformer.h.")
}

// ignored are the causal masks that old files hold.
func (g gpt2Family) ignored(name string) bool {
	return strings.HasSuffix(name, ".attn.bias") || strings.HasSuffix(name, ".attn.masked_bias")
}

func (g gpt2Family) tied() (head, embedding string) {
	if !g.cfg.Tied {
		return "", ""
	}
	return "lm_head.weight", "transformer.wte.weight"
}

func (g gpt2Family) shape() Shape {
	c := g.cfg
	ffn := c.FFN
	if ffn == 0 {
		ffn = 4 * c.Hidden
	}
	return Shape{
		"layers": c.Layers, "hidden": c.Hidden, "heads": c.Heads, "kv_heads": c.Heads, "head_dim": headDim(0, c.Hidden, c.Heads), "ffn": ffn, "vocab": c.Vocab,
		"max_seq_len": c.MaxPositions, "tie_embeddings": c.Tied, "qkv_bias": true, "rope_theta": 0.0, "norm_eps": c.NormEps,
	}
}
