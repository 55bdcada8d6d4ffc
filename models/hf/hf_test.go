package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/vec"
)

type object = map[string]any

func llamaConfig() object {
	return object{"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "vocab_size": 11, "hidden_size": 8,
		"intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
		"max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": true}
}

func qwenConfig() object {
	c := llamaConfig()
	c["model_type"], c["architectures"] = "qwen2", []string{"Qwen2ForCausalLM"}
	return c
}

func qwen3Config() object {
	c := llamaConfig()
	c["model_type"], c["architectures"], c["head_dim"] = "qwen3", []string{"Qwen3ForCausalLM"}, 6
	return c
}

func gpt2Config() object {
	return object{"model_type": "gpt2", "architectures": []string{"GPT2LMHeadModel"}, "vocab_size": 11, "n_embd": 8, "n_layer": 1,
		"n_head": 2, "n_positions": 16}
}

// weights are a model's tensors as a file holds them.
type weights map[string]safetensors.Tensor

func tensorOf(name string, dt dtype.DType, values []float32, shape ...int) safetensors.Tensor {
	raw := make([]byte, len(values)*dt.Size())
	vec.Narrow(dt, raw, values)
	return safetensors.Tensor{Name: name, DType: dt, Shape: shape, Data: safetensors.Bytes(raw)}
}

// numbers are the values of the named tensor, exact in every type.
func numbers(name string, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(int(models.NewRand(1, name).Uint64(uint64(i))%64) - 32)
	}
	return out
}

// folder writes the configuration and weights for all of its parameters, as dt.
func folder(t *testing.T, config object, dt dtype.DType, change func(weights)) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	f := &Folder{Dir: dir}
	if err := f.configure(); err != nil {
		return dir // Open will say the same
	}
	spec, err := f.family.describe(dtype.F32)
	if err != nil {
		return dir
	}
	w := weights{}
	for _, p := range spec.Params() {
		p.EachPart(func(part param.Part, from, to int) {
			shape := append([]int{part.Rows}, p.Shape[1:]...)
			if _, transposed := f.family.stored(part.Name, len(p.Shape)); transposed {
				slices.Reverse(shape)
			}
			w[part.Name] = tensorOf(part.Name, dt, numbers(part.Name, to-from), shape...)
		})
	}
	if change != nil {
		change(w)
	}
	if err := safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), slices.Collect(maps.Values(w)), nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loaded is what Load sets, by the names of parts.
func loaded(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	f, err := Open(dir, dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := map[string][]float32{}
	err = f.Load(f.Params(), func(p *param.Param, values []float32) error {
		p.EachPart(func(part param.Part, from, to int) { got[part.Name] = slices.Clone(values[from:to]) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEveryTypeLoads(t *testing.T) {
	for _, dt := range readable {
		for name, got := range loaded(t, folder(t, llamaConfig(), dt, nil)) {
			if !slices.Equal(got, numbers(name, len(got))) {
				t.Errorf("%s as %s: got %v", name, dt, got)
			}
		}
	}
}

func TestGPT2IsTransposedAndMayLackThePrefix(t *testing.T) {
	dir := folder(t, gpt2Config(), dtype.F32, func(w weights) {
		for name, x := range maps.Clone(w) {
			delete(w, name)
			x.Name = strings.TrimPrefix(name, "transformer.")
			w[x.Name] = x
		}
		w["h.0.attn.bias"] = tensorOf("h.0.attn.bias", dtype.F32, make([]float32, 4), 1, 1, 2, 2)
	})
	got := loaded(t, dir)
	name := "transformer.h.0.mlp.c_fc.weight"
	file := numbers(name, 8*32) // [8,32]
	for o := range 32 {
		for i := range 8 {
			if got[name][o*8+i] != file[i*32+o] {
				t.Fatalf("%s [%d,%d] is %v, want %v", name, o, i, got[name][o*8+i], file[i*32+o])
			}
		}
	}
	if name := "transformer.wpe.weight"; !slices.Equal(got[name], numbers(name, 16*8)) {
		t.Errorf("%s was transposed", name)
	}
}

func TestShardsLoad(t *testing.T) {
	dir := folder(t, llamaConfig(), dtype.F32, nil)
	whole := loaded(t, dir)
	index := map[string]string{}
	shards := map[string][]safetensors.Tensor{}
	for i, name := range slices.Sorted(maps.Keys(whole)) {
		file := fmt.Sprintf("model-%05d-of-00002.safetensors", 1+i%2)
		index[name] = file
		r, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := r.Info(name)
		r.Close()
		shards[file] = append(shards[file], tensorOf(name, dtype.F32, whole[name], info.Shape...))
	}
	if err := os.Remove(filepath.Join(dir, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	for file, tensors := range shards {
		if err := safetensors.WriteFile(filepath.Join(dir, file), tensors, nil); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(object{"metadata": object{"total_size": 1}, "weight_map": index})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := loaded(t, dir); !maps.EqualFunc(got, whole, slices.Equal) {
		t.Error("the shards hold other weights than the file")
	}
}

func TestEveryFaultyTensorIsNamed(t *testing.T) {
	dir := folder(t, llamaConfig(), dtype.F32, func(w weights) {
		delete(w, "model.norm.weight")
		delete(w, "model.layers.1.mlp.up_proj.weight")
		w["model.layers.0.mlp.up_proj.weight"] = tensorOf("model.layers.0.mlp.up_proj.weight", dtype.F32, make([]float32, 96), 8, 12)
		w["stray"] = tensorOf("stray", dtype.F32, make([]float32, 1), 1)
		w["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensorOf("model.layers.0.self_attn.rotary_emb.inv_freq", dtype.F32, make([]float32, 2), 2)
		long := safetensors.Tensor{Name: "model.layers.0.input_layernorm.weight", DType: dtype.I64, Shape: []int{8}, Data: safetensors.Bytes(make([]byte, 64))}
		w[long.Name] = long
	})
	_, err := Open(dir, dtype.F32)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"2 missing: model.layers.1.mlp.up_proj.weight; model.norm.weight",
		"2 wrong: ", "model.layers.0.mlp.up_proj.weight has the shape [8 12], want [12 8]", "input_layernorm.weight is of type I64",
		"1 unknown: stray",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestTiedHeadMayStandInTheFile(t *testing.T) {
	embedding := numbers("model.embed_tokens.weight", 88)
	with := func(values []float32) func(weights) {
		return func(w weights) { w["lm_head.weight"] = tensorOf("lm_head.weight", dtype.F32, values, 11, 8) }
	}
	if got := loaded(t, folder(t, llamaConfig(), dtype.F32, with(embedding))); len(got) != 20 {
		t.Errorf("%d parameters, want 20", len(got))
	}
	other := slices.Clone(embedding)
	other[87]++
	if _, err := Open(folder(t, llamaConfig(), dtype.F32, with(other)), dtype.F32); err == nil || !strings.Contains(err.Error(), "tie_word_embeddings") {
		t.Errorf("another head was accepted: %v", err)
	}
	untied := llamaConfig()
	untied["tie_word_embeddings"] = false
	if got := loaded(t, folder(t, untied, dtype.F32, nil)); len(got) != 21 {
		t.Errorf("%d parameters, want 21", len(got))
	}
}

func TestSettingsThatAreNotImplementedAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		config object
		key    string
		value  any
		want   string
	}{
		{llamaConfig(), "model_type", "mamba", "mamba"},
		{llamaConfig(), "architectures", []string{"LlamaForSequenceClassification"}, "LlamaForSequenceClassification"},
		{llamaConfig(), "rope_scaling", object{"rope_type": "llama3", "factor": 32}, "rope_scaling of type llama3 lacks"},
		{llamaConfig(), "rope_scaling", object{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1, "original_max_position_embeddings": 16}, "rotary positions scaled"},
		{llamaConfig(), "rope_scaling", object{"type": "linear", "factor": 2}, "linear"},
		{llamaConfig(), "rope_parameters", object{"rope_type": "yarn", "rope_theta": 1e4}, "yarn"},
		{llamaConfig(), "attention_bias", true, "attention_bias"},
		{llamaConfig(), "mlp_bias", true, "mlp_bias"},
		{llamaConfig(), "hidden_act", "gelu", "hidden_act"},
		{llamaConfig(), "hidden_size", nil, "hidden_size is missing"},
		{llamaConfig(), "vocab_size", "many", "vocab_size"},
		{llamaConfig(), "num_key_value_heads", 3, "3 key and value heads"},
		{llamaConfig(), "quantization_config", object{"bits": 4}, "quantization_config"},
		{llamaConfig(), "layer_types", []string{"full_attention", "sliding_attention"}, "sliding_attention"},
		{qwen3Config(), "attention_bias", true, "attention_bias"},
		{qwen3Config(), "use_sliding_window", true, "use_sliding_window"},
		{qwen3Config(), "layer_types", []string{"full_attention", "sliding_attention"}, "sliding_attention"},
		{qwen3Config(), "rope_scaling", object{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, "yarn"},
		{qwen3Config(), "head_dim", 7, "head size of 7"},
		{qwen3Config(), "architectures", []string{"Qwen3ForSequenceClassification"}, "Qwen3ForSequenceClassification"},
		{qwen3Config(), "model_type", "qwen3_moe", `"qwen3_moe"`},
		{gpt2Config(), "activation_function", "relu", "activation_function"},
		{gpt2Config(), "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx"},
		{gpt2Config(), "n_head", 3, "3 heads"},
	} {
		c.config[c.key] = c.value
		if _, err := Open(folder(t, c.config, dtype.F32, nil), dtype.F32); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v: want an error with %q, got %v", c.key, c.value, c.want, err)
		}
	}
	qwen := qwenConfig()
	qwen["use_sliding_window"] = true
	if _, err := Open(folder(t, qwen, dtype.F32, nil), dtype.F32); err == nil || !strings.Contains(err.Error(), "use_sliding_window") {
		t.Errorf("a sliding window was accepted: %v", err)
	}
	if _, err := Open(t.TempDir(), dtype.F32); err == nil {
		t.Error("an empty folder was opened")
	}
}

// Mistral is Llama, as long as its window is as long as its texts.
func TestMistral(t *testing.T) {
	c := llamaConfig()
	c["model_type"], c["architectures"] = "mistral", []string{"MistralForCausalLM"}
	for _, window := range []any{nil, 16, 4096} {
		c["sliding_window"] = window
		if got := loaded(t, folder(t, c, dtype.F32, nil)); len(got) != 20 {
			t.Errorf("window %v: %d parameters", window, len(got))
		}
	}
	c["sliding_window"] = 8
	if _, err := Open(folder(t, c, dtype.F32, nil), dtype.F32); err == nil || !strings.Contains(err.Error(), "sliding_window is 8 of 16") {
		t.Errorf("a sliding window was accepted: %v", err)
	}
}

// The scaling of positions reaches the model in both spellings, and lacks nothing.
func TestLlama3Positions(t *testing.T) {
	scaling := object{"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
	newer := maps.Clone(scaling)
	newer["rope_theta"] = 5e5
	for key, value := range map[string]object{"rope_scaling": scaling, "rope_parameters": newer} {
		c := llamaConfig()
		c["rope_theta"], c[key] = 5e5, value
		f, err := Open(folder(t, c, dtype.F32, nil), dtype.F32)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cfg := f.family.(llamaFamily).cfg
		if want := (llama.RopeScaling{Factor: 32, Low: 1, High: 4, Original: 8192}); cfg.RopeScaling == nil || *cfg.RopeScaling != want || cfg.RopeTheta != 5e5 {
			t.Errorf("%s: %+v, base %v", key, cfg.RopeScaling, cfg.RopeTheta)
		}
	}
}

func TestQwenHasBiases(t *testing.T) {
	got := loaded(t, folder(t, qwenConfig(), dtype.F32, nil))
	if name := "model.layers.1.self_attn.v_proj.bias"; !slices.Equal(got[name], numbers(name, 4)) || len(got) != 26 {
		t.Errorf("%d parameters, %s is %v", len(got), name, got[name])
	}
}

// Qwen3's heads have norms and a size of their own, which is 128 where it is not given.
func TestQwen3HasNormsOfHeads(t *testing.T) {
	got := loaded(t, folder(t, qwen3Config(), dtype.F32, nil))
	for _, name := range []string{"model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"} {
		if !slices.Equal(got[name], numbers(name, 6)) || len(got) != 24 {
			t.Errorf("%d parameters, %s is %v", len(got), name, got[name])
		}
	}
	if n := len(got["model.layers.0.self_attn.o_proj.weight"]); n != 8*2*6 {
		t.Errorf("the projection of two heads of 6 to a width of 8 has %d elements", n)
	}
	c := qwen3Config()
	delete(c, "head_dim")
	if n := len(loaded(t, folder(t, c, dtype.F32, nil))["model.layers.0.self_attn.q_norm.weight"]); n != 128 {
		t.Errorf("without head_dim heads have %d", n)
	}
	missing := folder(t, qwen3Config(), dtype.F32, func(w weights) { delete(w, "model.layers.1.self_attn.k_norm.weight") })
	if _, err := Open(missing, dtype.F32); err == nil || !strings.Contains(err.Error(), "model.layers.1.self_attn.k_norm.weight") {
		t.Errorf("a folder without a norm was opened: %v", err)
	}
}

func TestNewerSpellingOfTheRotaryBase(t *testing.T) {
	c := llamaConfig()
	c["rope_parameters"] = object{"rope_type": "default", "rope_theta": 5e5}
	f, err := Open(folder(t, c, dtype.F32, nil), dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := f.family.(llamaFamily).cfg.RopeTheta; got != 5e5 {
		t.Errorf("base %v", got)
	}
}

func TestDropoutIsNoted(t *testing.T) {
	c := gpt2Config()
	c["resid_pdrop"] = 0.1
	f, err := Open(folder(t, c, dtype.F32, nil), dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "resid_pdrop") {
		t.Errorf("notes %q", f.Notes)
	}
}

// The published configurations give models of the published sizes.
func TestPublishedConfigurations(t *testing.T) {
	for file, want := range map[string]int{
		"config/Qwen2.5-0.5B-Instruct.config.json": 494032768,
		"config/Qwen2.5-1.5B-Instruct.config.json": 1543714304,
	} {
		text, err := os.ReadFile(testenv.Data(t, file))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		f := &Folder{Dir: dir}
		if err := f.configure(); err != nil {
			t.Fatal(err)
		}
		spec, err := f.family.describe(dtype.F32)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, p := range spec.Params() {
			total += p.Numel()
		}
		if total != want || len(f.Notes) > 0 {
			t.Errorf("%s: %d parameters, want %d; notes %q", file, total, want, f.Notes)
		}
	}
}

// A range of a parameter is that of the whole, through its parts and transposed ones.
func TestRangesAreOfTheWhole(t *testing.T) {
	for what, c := range map[string]object{"llama": llamaConfig(), "gpt2": gpt2Config()} {
		for _, dt := range readable {
			f, err := Open(folder(t, c, dt, nil), dtype.F32)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, p := range f.Params() {
				n := p.Numel()
				all := make([]float32, n)
				if err := f.Read(p, all); err != nil {
					t.Fatal(err)
				}
				step := max(n/9, 1)
				for from := 0; from < n; from += step {
					for to := from; to <= n; to += step {
						got := make([]float32, to-from)
						if err := f.ReadRange(p, from, got); err != nil || !slices.Equal(got, all[from:to]) {
							t.Fatalf("%s as %s: elements %d to %d of %s: %v, %v, want %v", what, dt, from, to, p.Name, got, err, all[from:to])
						}
					}
				}
			}
		}
	}
}

// A file that is shortened while it is read is an error that names it, in every way in
// which it is read, and not the end of the process.
func TestShortenedWeights(t *testing.T) {
	for what, c := range map[string]object{"llama": llamaConfig(), "gpt2": gpt2Config()} {
		for _, dt := range readable {
			f, err := Open(folder(t, c, dt, nil), dtype.F32)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			file := filepath.Join(f.Dir, "model.safetensors")
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			_, printed := f.Fingerprint()
			norms := slices.DeleteFunc(f.file.Names(), func(name string) bool {
				return !strings.Contains(name, "norm.weight") && !strings.Contains(name, "ln_1.weight") && !strings.Contains(name, "ln_f.weight")
			})
			f.names["twin"] = norms[0]
			for how, err := range map[string]error{
				"read":        f.Read(f.Params()[0], make([]float32, f.Params()[0].Numel())),
				"loaded":      f.Load(f.Params(), func(*param.Param, []float32) error { return nil }),
				"fingerprint": printed,
				"compared":    f.sameHead(norms[1], "twin"),
			} {
				if err == nil || !strings.Contains(err.Error(), file+": a part of it can no longer be read") || strings.Count(err.Error(), file) > 1 {
					t.Errorf("%s as %s, %s: got %v", what, dt, how, err)
				}
			}
		}
	}
}

func TestLoadChecksTheModel(t *testing.T) {
	f, err := Open(folder(t, llamaConfig(), dtype.F32, nil), dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	never := func(*param.Param, []float32) error { t.Error("set was called"); return nil }
	if err := f.Load(f.Params()[1:], never); err == nil {
		t.Error("a list of other length was accepted")
	}
	stop := fmt.Errorf("no room")
	if err := f.Load(f.Params(), func(*param.Param, []float32) error { return stop }); err == nil || !strings.Contains(err.Error(), "model.embed_tokens.weight: no room") {
		t.Errorf("got %v", err)
	}
}
