package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// ErrShape is the error of shapes that no config.json can say.
var ErrShape = errors.New("there is no config.json for it")

// NewConfig makes the config.json of a model that has no source: one of shape s, whose
// keys are those that ReadShape gives. Further keys, such as bos_token_id and
// eos_token_id, may be given, and stand for those that s makes.
func NewConfig(s Shape, further map[string]any) ([]byte, error) {
	arch, _ := s["arch"].(string)
	c := map[string]any{"model_type": arch, "vocab_size": s["vocab"], "tie_word_embeddings": s["tie_embeddings"]}
	switch arch {
	case "llama", "qwen2", "qwen3":
		if bias, _ := s["qkv_bias"].(bool); bias != (arch == "qwen2") {
			return nil, fmt.Errorf("a model of architecture %s with qkv_bias %t: %w", arch, bias, ErrShape)
		}
		hidden, _ := s["hidden"].(int)
		heads, _ := s["heads"].(int)
		given, _ := s["head_dim"].(int)
		switch usual, d := headDim(0, hidden, heads), headDim(given, hidden, heads); {
		case arch == "qwen3" || arch == "llama" && d != usual:
			c["head_dim"] = d
		case d != usual:
			return nil, fmt.Errorf("a model of architecture %s with heads of %d, %d of which are no width of %d: %w", arch, d, heads, hidden, ErrShape)
		}
		maps.Copy(c, map[string]any{
			"hidden_size": s["hidden"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
			"num_key_value_heads": s["kv_heads"], "intermediate_size": s["ffn"], "max_position_embeddings": s["max_seq_len"],
			"rope_theta": s["rope_theta"], "rms_norm_eps": s["norm_eps"], "hidden_act": "silu",
		})
		if arch != "llama" { // else it is taken for 4096 positions
			c["use_sliding_window"], c["sliding_window"] = false, nil
		}
	case "gpt2":
		maps.Copy(c, map[string]any{
			"n_embd": s["hidden"], "n_layer": s["layers"], "n_head": s["heads"], "n_inner": s["ffn"], "n_positions": s["max_seq_len"],
			"layer_norm_epsilon": s["norm_eps"], "activation_function": "gelu_new",
			// Nothing was dropped here, and nothing is to be in a model that is loaded.
			"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0,
		})
	default:
		return nil, fmt.Errorf("a model of architecture %q: %w", arch, ErrShape)
	}
	c["architectures"] = []string{classes[arch]}
	maps.Copy(c, further)
	text, err := json.MarshalIndent(c, "", "  ")
	return append(text, '\n'), err
}
