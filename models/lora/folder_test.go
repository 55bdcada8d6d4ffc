package lora

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// save writes the adapters of a rig to a new folder.
func save(t *testing.T, l *Adapters, b Base, r *modeltest.Rig) string {
	t.Helper()
	dir, from := t.TempDir(), values(r)
	err := l.Save(dir, b, l.Tensors(func(factor string) func(io.Writer) error {
		return safetensors.Bytes(device.Of(from[factor]).Bytes())
	}))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// What is saved is read back, to the bit, into a model of the settings in the folder.
func TestSavedAdaptersAreReadBack(t *testing.T) {
	for name, of := range families {
		build, l := adapted(of, Config{R: 3, Alpha: 4.5, Dropout: 0.1}, false)
		r := modeltest.New(t, 1, 4, build)
		f := open(t, save(t, *l, Base{Path: "models/base"}, r))
		if f.Base != "models/base" || f.Config.R != 3 || f.Config.Alpha != 4.5 || f.Config.Dropout != 0.1 || len(f.Config.Targets) != len((*l).Modules) {
			t.Errorf("%s: read %+v for %s", name, f.Config, f.Base)
		}
		s, err := of()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Fits(s); err != nil {
			t.Error(err)
		}
		again, err := Add(s, f.Config)
		if err != nil {
			t.Fatal(err)
		}
		read := map[string][]float32{}
		err = f.Load(again, func(p *param.Param, v []float32) error {
			p.EachPart(func(part param.Part, from, to int) { read[part.Name] = slices.Clone(v[from:to]) })
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := values(r)
		if len(read) != 2*len((*l).Modules) {
			t.Errorf("%s: %d tensors were read", name, len(read))
		}
		for part, v := range read {
			if !slices.Equal(v, want[part]) {
				t.Errorf("%s: %s is not what was saved", name, part)
			}
		}
		file := filepath.Join(f.Dir, WeightsFile)
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Load(again, func(*param.Param, []float32) error { return nil }); err == nil || !strings.Contains(err.Error(), file+": a part of it can no longer be read") {
			t.Errorf("%s: of a file that was shortened: %v", name, err)
		}
	}
}

// A folder's weights with the saved adapters merged in are the adapted model's.
func TestMergedFromAFolder(t *testing.T) {
	for name, targets := range map[string][]string{"llama": {"k_proj", "o_proj"}, "gpt2": {"c_fc", "c_attn"}} {
		of := families[name]
		build, l := adapted(of, Config{R: 3, Targets: targets}, false)
		r, merged := modeltest.New(t, 2, 8, build), modeltest.New(t, 2, 8, plain(of))
		f := open(t, save(t, *l, Base{}, r))
		from := values(r)
		given := 0
		set := f.Merged(func(p *param.Param, v []float32) error {
			given++
			copy(merged.Weights.Replica.Weight(p).F32(), v)
			return nil
		})
		for _, p := range merged.Model.Params() {
			v := make([]float32, p.Numel())
			p.EachPart(func(part param.Part, a, b int) { copy(v[a:b], from[part.Name]) })
			if err := set(p, v); err != nil {
				t.Fatal(err)
			}
		}
		if given != len(merged.Model.Params()) {
			t.Errorf("%s: %d weights were handed on", name, given)
		}
		b := modeltest.RandomBatch(5, 2, 8, vocab)
		modeltest.Near(t, name+": loss", r.Forward(b, false), merged.Forward(b, false), 1e-6, 1)
	}
}

// The files are PEFT's: the settings that all its versions know, and its names.
func TestFilesArePEFTs(t *testing.T) {
	build, l := adapted(tinyGPT2, Config{R: 2}, false)
	dir := save(t, *l, Base{Path: "./gpt2", Transposed: true}, modeltest.New(t, 1, 4, build))
	text, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "./gpt2",
  "bias": "none",
  "fan_in_fan_out": true,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 4,
  "lora_dropout": 0,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 2,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "c_attn",
    "c_fc",
    "c_proj"
  ],
  "task_type": "CAUSAL_LM"
}
`
	if string(text) != want {
		t.Errorf("%s is\n%s", ConfigFile, text)
	}
	r, err := safetensors.Open(filepath.Join(dir, WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, shape := range map[string][]int{
		"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": {2, 12},
		"base_model.model.transformer.h.1.mlp.c_proj.lora_A.weight":  {2, 48},
		"base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight":  {12, 2},
	} {
		if info, ok := r.Info(name); !ok || !slices.Equal(info.Shape, shape) || info.DType != dtype.F32 {
			t.Errorf("%s is %+v, want f32%v", name, info, shape)
		}
	}
	if n := len(r.Names()); n != 16 || r.Metadata()["format"] != "pt" {
		t.Errorf("%d tensors, metadata %v", n, r.Metadata())
	}
	if err := (*l).Save(dir, Base{}, nil); err == nil {
		t.Error("adapters were written over others")
	}
}

// Targets that are no whole kinds of layers are handed on as they were given: PEFT
// finds layers by the ends of their names, too.
func TestTargetsAreSaved(t *testing.T) {
	for _, c := range []struct{ given, want []string }{
		{nil, []string{"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}},
		{[]string{"v_proj", "q_proj", "q_proj"}, []string{"q_proj", "v_proj"}},
		{[]string{"layers.1.mlp.up_proj"}, []string{"layers.1.mlp.up_proj"}},
	} {
		s, err := tinyLlama()
		if err != nil {
			t.Fatal(err)
		}
		l, err := Add(s, Config{R: 1, Targets: c.given})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.targets(); !slices.Equal(got, c.want) {
			t.Errorf("%v are saved as %v, want %v", c.given, got, c.want)
		}
	}
}

// tensors are a file's, of zeros, by the shapes given; nil takes a name out.
type tensors map[string][]int

func write(t *testing.T, settings map[string]any, list tensors) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigFile), text, 0o666); err != nil {
		t.Fatal(err)
	}
	var all []safetensors.Tensor
	for name, shape := range list {
		if shape != nil {
			all = append(all, safetensors.Tensor{Name: prefix + name, DType: dtype.F32, Shape: shape,
				Data: safetensors.Bytes(make([]byte, 4*numel(shape)))})
		}
	}
	if err := safetensors.WriteFile(filepath.Join(dir, WeightsFile), all, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func TestForeignFolders(t *testing.T) {
	const q = "model.layers.0.self_attn.q_proj"
	settings := map[string]any{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear", "bias": "none",
		// What newer versions write, at rest.
		"use_dora": false, "use_rslora": false, "layer_replication": nil, "megatron_core": "megatron.core", "rank_pattern": map[string]int{},
		"eva_config": nil, "qalora_group_size": 16, "lora_bias": false, "peft_version": "0.18.0", "exclude_modules": nil, "init_lora_weights": "gaussian"}
	weights := tensors{q + endA: {2, 20}, q + endB: {24, 2}}
	for _, c := range []struct {
		name     string
		settings map[string]any
		tensors  tensors
		says     string // none: it opens and fits
	}{
		{"as PEFT writes it", nil, nil, ""},
		{"another method", map[string]any{"peft_type": "LOHA"}, nil, `type "LOHA"`},
		{"DoRA", map[string]any{"use_dora": true}, nil, "use_dora is true"},
		{"rank-stabilised", map[string]any{"use_rslora": true}, nil, "use_rslora is true"},
		{"other ranks", map[string]any{"rank_pattern": map[string]int{"q": 3}}, nil, `rank_pattern is {"q":3}`},
		{"whole modules", map[string]any{"modules_to_save": []string{"lm_head"}}, nil, `modules_to_save is ["lm_head"]`},
		{"biases", map[string]any{"bias": "all"}, nil, "bias is all"},
		{"a changed base", map[string]any{"init_lora_weights": "pissa"}, nil, `init_lora_weights is "pissa"`},
		{"a setting of tomorrow", map[string]any{"use_tomorrow": 1}, nil, "use_tomorrow is 1"},
		{"no rank", map[string]any{"r": 0}, nil, "rank of 0"},
		{"no alpha", map[string]any{"lora_alpha": 0}, nil, "lora_alpha is 0"},
		{"a string for a number", map[string]any{"r": "8"}, nil, "r"},
		{"one factor", nil, tensors{q + endB: nil}, q + " has one factor"},
		{"another rank", nil, tensors{q + endA: {3, 20}}, "lora_A.weight has the shape [3 20], and r is 2"},
		{"an embedding", nil, tensors{"model.embed_tokens.weight": {2, 2}}, "embed_tokens.weight is no adapter's factor"},
		{"nothing", nil, tensors{q + endA: nil, q + endB: nil}, "there are no adapters in it"},
		{"another layer", nil, tensors{"lm_head" + endA: {2, 20}, "lm_head" + endB: {29, 2}}, "lm_head is no linear layer"},
		{"another shape", nil, tensors{q + endA: {2, 21}}, "21 inputs and 24 outputs, the model's layer 20 and 24"},
	} {
		s, w := maps.Clone(settings), maps.Clone(weights)
		maps.Copy(s, c.settings)
		maps.Copy(w, c.tensors)
		f, err := Open(write(t, s, w))
		if err == nil {
			var spec *decoder.Spec
			if spec, err = tinyLlama(); err != nil {
				t.Fatal(err)
			}
			err = f.Fits(spec)
			f.Close()
		}
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.says)
		}
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "holds no adapters") {
		t.Errorf("an empty folder: error %v", err)
	}
	f := open(t, write(t, settings, weights))
	spec, err := tinyLlama()
	if err != nil {
		t.Fatal(err)
	}
	l, err := Add(spec, Config{R: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Load(l, nil); err == nil || !strings.Contains(err.Error(), "on 1 layers, the model has others") {
		t.Errorf("adapters of other layers: error %v", err)
	}
}
