package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// valuesOf gives what loaded has.
func valuesOf(weights map[string][]float32) Values {
	return func(p *param.Param, from int, values []float32) error {
		var all []float32
		p.EachPart(func(part param.Part, _, _ int) { all = append(all, weights[part.Name]...) })
		copy(values, all[from:from+len(values)])
		return nil
	}
}

// A model that was read and written is the same, in every family and in files of any
// size; its configuration and small files are copied byte by byte.
func TestWrittenModelIsTheOneRead(t *testing.T) {
	for name, config := range map[string]object{"llama": llamaConfig(), "qwen2": qwenConfig(), "gpt2": gpt2Config()} {
		config["torch_dtype"] = "float32"
		source := folder(t, config, dtype.F32, nil)
		small := map[string]string{"tokenizer.json": "{}", "LICENSE": "mine", "chat_template.jinja": "{{ x }}"}
		for name, text := range small {
			if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, junk := range []string{"pytorch_model.bin", ".hidden", "pytorch_model.bin.index.json"} {
			if err := os.WriteFile(filepath.Join(source, junk), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := loaded(t, source)
		for _, most := range []int64{0, 1, 1000} {
			dir := filepath.Join(t.TempDir(), "out")
			if err := (Output{Dir: dir, Source: source, ShardBytes: most}).Write(valuesOf(want)); err != nil {
				t.Fatal(err)
			}
			if got := loaded(t, dir); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s in files of %d bytes: other weights", name, most)
			}
			for name, text := range small {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
					t.Errorf("%s: %q, %v", name, got, err)
				}
			}
			a, errA := os.ReadFile(filepath.Join(source, "config.json"))
			b, errB := os.ReadFile(filepath.Join(dir, "config.json"))
			if errA != nil || errB != nil || string(a) != string(b) {
				t.Errorf("%s: config.json is %s, was %s", name, b, a)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			weights := 1
			switch most {
			case 1:
				weights = tensorsIn(t, source) + 1 // the index
			case 1000:
				weights = len(files) - len(small) - 1
				if weights < 3 {
					t.Errorf("%s in files of 1000 bytes: %v", name, files)
				}
			}
			if len(files) != len(small)+1+weights {
				t.Errorf("%s in files of %d bytes: %v", name, most, files)
			}
		}
	}
}

func tensorsIn(t *testing.T, dir string) int {
	r, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return len(r.Names())
}

// The type is the one asked for, else the configuration's, and the configuration says it.
func TestWrittenType(t *testing.T) {
	for _, c := range []struct {
		key, says string
		ask, want dtype.DType
	}{
		{"torch_dtype", "bfloat16", dtype.Invalid, dtype.BF16},
		{"torch_dtype", "bfloat16", dtype.F16, dtype.F16},
		{"dtype", "float16", dtype.BF16, dtype.BF16},
		{"", "", dtype.Invalid, dtype.F32},
		{"", "", dtype.BF16, dtype.BF16},
	} {
		config := llamaConfig()
		if c.key != "" {
			config[c.key] = c.says
		}
		source := folder(t, config, dtype.F32, nil)
		weights := loaded(t, source)
		dir := filepath.Join(t.TempDir(), "out")
		if err := (Output{Dir: dir, Source: source, DType: c.ask}).Write(valuesOf(weights)); err != nil {
			t.Fatal(err)
		}
		r, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range r.Names() {
			if info, _ := r.Info(name); info.DType != c.want {
				t.Errorf("%+v: %s is of type %s", c, name, info.DType)
			}
		}
		if r.Metadata()["format"] != "pt" {
			t.Errorf("metadata %v", r.Metadata())
		}
		r.Close()
		var said map[string]any
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil || json.Unmarshal(text, &said) != nil {
			t.Fatal(err)
		}
		key := c.key
		if key == "" {
			key = "torch_dtype"
		}
		if said[key] != typeNames[c.want] || len(said) != len(config)+btoi(c.key == "") {
			t.Errorf("%+v: config.json says %v", c, said)
		}
		if got := loaded(t, dir); !maps.EqualFunc(got, weights, slices.Equal) {
			t.Errorf("%+v: other weights", c)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A tied head is left out: other tools make it of the embedding, or refuse it.
func TestTiedHeadIsNotWritten(t *testing.T) {
	source := folder(t, llamaConfig(), dtype.F32, nil)
	dir := filepath.Join(t.TempDir(), "out")
	if err := (Output{Dir: dir, Source: source}).Write(valuesOf(loaded(t, source))); err != nil {
		t.Fatal(err)
	}
	r, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if slices.Contains(r.Names(), "lm_head.weight") {
		t.Error("lm_head.weight was written")
	}
}

// What fails leaves nothing behind, and what was there as it was.
func TestFailedWriteLeavesNothing(t *testing.T) {
	source := folder(t, llamaConfig(), dtype.F32, nil)
	weights := loaded(t, source)
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	n := 0
	fails := func(p *param.Param, from int, values []float32) error {
		if n++; n == 5 {
			return fmt.Errorf("no more")
		}
		return valuesOf(weights)(p, from, values)
	}
	if err := (Output{Dir: dir, Source: source}).Write(fails); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Fatalf("got %v", err)
	}
	if list, _ := os.ReadDir(parent); len(list) != 0 {
		t.Errorf("left behind: %v", list)
	}
	if err := (Output{Dir: dir, Source: source}).Write(valuesOf(weights)); err != nil {
		t.Fatal(err)
	}
	if err := (Output{Dir: dir, Source: source}).Write(valuesOf(weights)); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("written over without being asked: %v", err)
	}
	n = 0
	if err := (Output{Dir: dir, Source: source, Replace: true}).Write(fails); err == nil {
		t.Error("no error")
	}
	if got := loaded(t, dir); !maps.EqualFunc(got, weights, slices.Equal) {
		t.Error("the folder that was there has changed")
	}
	if err := (Output{Dir: dir, Source: source, Replace: true, DType: dtype.BF16}).Write(valuesOf(weights)); err != nil {
		t.Fatal(err)
	}
	if list, _ := os.ReadDir(parent); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
	for name, o := range map[string]Output{
		"no config.json": {Dir: filepath.Join(parent, "a")},
		"integers":       {Dir: filepath.Join(parent, "b"), Source: source, DType: dtype.I32},
		"no source":      {Dir: filepath.Join(parent, "c"), Source: filepath.Join(parent, "nowhere")},
	} {
		if err := o.Write(valuesOf(weights)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if list, _ := os.ReadDir(parent); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}

// A configuration that was made says the shape that it was made of.
func TestNewConfig(t *testing.T) {
	for _, s := range []Shape{
		{"arch": "llama", "layers": 2, "hidden": 8, "heads": 2, "kv_heads": 1, "head_dim": 6, "ffn": 12, "vocab": 11, "max_seq_len": 16,
			"tie_embeddings": true, "qkv_bias": false, "rope_theta": 5e5, "norm_eps": float32(1e-5)},
		{"arch": "qwen2", "layers": 3, "hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "ffn": 40, "vocab": 12, "max_seq_len": 17,
			"tie_embeddings": false, "qkv_bias": true, "rope_theta": 1e6, "norm_eps": float32(1e-6)},
		{"arch": "qwen3", "layers": 3, "hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "ffn": 40, "vocab": 12, "max_seq_len": 17,
			"tie_embeddings": false, "qkv_bias": false, "rope_theta": 1e6, "norm_eps": float32(1e-6)},
		{"arch": "qwen3", "layers": 3, "hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 10, "ffn": 40, "vocab": 12, "max_seq_len": 17,
			"tie_embeddings": true, "qkv_bias": false, "rope_theta": 1e6, "norm_eps": float32(1e-6)},
		{"arch": "gpt2", "layers": 1, "hidden": 8, "heads": 2, "kv_heads": 2, "head_dim": 4, "ffn": 24, "vocab": 11, "max_seq_len": 16,
			"tie_embeddings": true, "qkv_bias": true, "rope_theta": 0.0, "norm_eps": float32(1e-5)},
	} {
		text, err := NewConfig(s, map[string]any{"eos_token_id": 0})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadShape(dir)
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("got %v, %v\nwant %v", got, err, s)
		}
		var all map[string]any
		if err := json.Unmarshal(text, &all); err != nil || all["eos_token_id"] != 0.0 {
			t.Errorf("%v, %v", all, err)
		}
	}
	for _, s := range []Shape{{"arch": "bert"}, {"arch": "llama", "qkv_bias": true}, {"arch": "qwen3", "qkv_bias": true},
		{"arch": "qwen2", "qkv_bias": true, "hidden": 16, "heads": 4, "head_dim": 6}} {
		if _, err := NewConfig(s, nil); err == nil {
			t.Errorf("%v has a config.json", s)
		}
	}
}
