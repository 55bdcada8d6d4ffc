package hf

import (
	"encoding/json"
	"strings"

	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// llamaFamily is Llama, Mistral, Qwen2 and Qwen3. Their rotary positions pair element i with
// i+D/2, here as there, so queries and keys need no permutation.
type llamaFamily struct{ cfg llama.Config }

// qwen3HeadDim is the head size of a Qwen3 whose configuration has none, whatever its
// width.
const qwen3HeadDim = 128

func (c *settings) llama(arch string) family {
	theta, scaling := c.rope()
	cfg := llama.Config{
		Vocab: c.integer("vocab_size"), Hidden: c.integer("hidden_size"), Layers: c.integer("num_hidden_layers"),
		Heads: c.integer("num_attention_heads"), FFN: c.integer("intermediate_size"),
		HeadDim:      or(c, "head_dim", 0),
		MaxPositions: c.integer("max_position_embeddings"),
		RopeTheta:    theta,
		RopeScaling:  scaling,
		NormEps:      or(c, "rms_norm_eps", float32(1e-6)),
		QKVBias:      arch == "qwen2",
		QKNorm:       arch == "qwen3",
		Tied:         or(c, "tie_word_embeddings", false),
	}
	if cfg.HeadDim == 0 && arch == "qwen3" {
		cfg.HeadDim = qwen3HeadDim
	}
	cfg.KVHeads = or(c, "num_key_value_heads", cfg.Heads)
	want(c, "hidden_act", "silu", "swish")
	want(c, "mlp_bias", false)
	want(c, "partial_rotary_factor", 1.0)
	switch arch {
	case "qwen2":
		want(c, "use_sliding_window", false)
	case "qwen3":
		want(c, "use_sliding_window", false)
		want(c, "attention_bias", false)
	case "mistral": // a window as long as the longest text is none
		if w := or(c, "sliding_window", cfg.MaxPositions); w < cfg.MaxPositions {
			c.fail("sliding_window is %d of %d positions; supported is attention to all positions", w, cfg.MaxPositions)
		}
	default:
		want(c, "attention_bias", false)
	}
	for _, kind := range or(c, "layer_types", []string(nil)) {
		if kind != "full_attention" {
			c.fail("layer_types holds %q; supported is full_attention", kind)
			break
		}
	}
	c.dropout("attention_dropout")
	return llamaFamily{cfg}
}

// rope is the base of rotary positions, which stands at the top or, in newer
// files, in rope_parameters, and their scaling, of which llama3's is supported.
func (c *settings) rope() (theta float64, scaling *llama.RopeScaling) {
	theta = or(c, "rope_theta", 10000.0)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var r struct {
			Type    string  `json:"rope_type"`
			OldType string  `json:"type"`
			Theta   float64 `json:"rope_theta"`
		}
		var all map[string]json.RawMessage
		if !c.read(key, &all) || !c.read(key, &r) {
			continue
		}
		kind := r.Type
		if kind == "" {
			kind = r.OldType
		}
		switch {
		case kind == "llama3":
			scaling = c.llama3(key)
		case kind != "" && kind != "default" || kind == "" && r.Theta == 0:
			c.fail("%s asks for scaled rotary positions (%q), which are not supported", key, kind)
		}
		if r.Theta != 0 {
			theta = r.Theta
		}
	}
	return theta, scaling
}

// llama3 is the scaling of Llama 3.1 and later, which has no defaults.
func (c *settings) llama3(key string) *llama.RopeScaling {
	var s struct {
		Factor   *float64 `json:"factor"`
		Low      *float64 `json:"low_freq_factor"`
		High     *float64 `json:"high_freq_factor"`
		Original *int     `json:"original_max_position_embeddings"`
	}
	c.read(key, &s)
	if s.Factor == nil || s.Low == nil || s.High == nil || s.Original == nil {
		c.fail("%s of type llama3 lacks one of factor, low_freq_factor, high_freq_factor, original_max_position_embeddings", key)
		return nil
	}
	return &llama.RopeScaling{Factor: *s.Factor, Low: *s.Low, High: *s.High, Original: *s.Original}
}

func (l llamaFamily) describe(dt dtype.DType) (*decoder.Spec, error) {
	l.cfg.DType = dt
	return llama.Describe(l.cfg)
}

func (l llamaFamily) stored(part string, _ int) ([]string, bool) { return []string{part}, false }

// ignored are the tables of frequencies that old files hold.
func (l llamaFamily) ignored(name string) bool {
	return strings.HasSuffix(name, ".rotary_emb.inv_freq")
}

func (l llamaFamily) tied() (head, embedding string) {
	if !l.cfg.Tied {
		return "", ""
	}
	return "lm_head.weight", "model.embed_tokens.weight"
}

func (l llamaFamily) shape() Shape {
	c := l.cfg
	return Shape{
		"layers": c.Layers, "hidden": c.Hidden, "heads": c.Heads, "kv_heads": c.KVHeads, "head_dim": headDim(c.HeadDim, c.Hidden, c.Heads), "ffn": c.FFN, "vocab": c.Vocab,
		"max_seq_len": c.MaxPositions, "tie_embeddings": c.Tied, "qkv_bias": c.QKVBias, "rope_theta": c.RopeTheta, "norm_eps": c.NormEps,
	}
}
