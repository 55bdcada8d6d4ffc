package train

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/lora"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// folderWeights are those of a model's folder, by the names of parts.
func folderWeights(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	f, err := hf.Open(dir, dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]float32{}
	for _, p := range f.Params() {
		values := make([]float32, p.Numel())
		if err := f.Read(p, values); err != nil {
			t.Fatal(err)
		}
		p.EachPart(func(part param.Part, from, to int) { all[part.Name] = values[from:to] })
	}
	return all
}

func asFloats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	copy(device.Of(v).Bytes(), b)
	return v
}

func exported(t *testing.T, e Export) string {
	t.Helper()
	about, err := e.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return about
}

// The folder that a checkpoint becomes holds its weights, whatever wrote it, and trains
// on as the checkpoint would.
func TestExportedModelIsTheCheckpoints(t *testing.T) {
	for name, sets := range map[string][]string{
		"llama":             {"model.arch=llama"},
		"qwen2, tied":       {"model.arch=qwen2", "model.tie_embeddings=true"},
		"qwen3, wide heads": {"model.arch=qwen3", "model.head_dim=12"},
		"gpt2":              {"model.arch=gpt2", "model.kv_heads=4"},
		"llama by 2 shards": {"parallel.strategy=zero3", "train.micro_batch=6"},
	} {
		t.Run(name, func(t *testing.T) {
			out, dir := t.TempDir(), filepath.Join(t.TempDir(), "model")
			n := 1
			if strings.Contains(name, "shards") {
				n = 2
			}
			mustTrain(t, n, append(sets, "output="+out)...)
			about := exported(t, Export{From: out, Output: dir})
			if !strings.Contains(about, "of step 6, from "+filepath.Join(out, "checkpoints", "step-00000006")) {
				t.Errorf("it says %q", about)
			}
			got, saved := folderWeights(t, dir), weights(t, out, 6)
			for name, values := range got {
				want := asFloats(saved[name])
				if len(want) != len(values) {
					t.Errorf("%s has %d values, want %d", name, len(values), len(want))
					continue
				}
				for i, v := range values {
					if math.Float32bits(v) != math.Float32bits(want[i]) {
						t.Errorf("%s[%d] is %v, want %v", name, i, v, want[i])
						break
					}
				}
			}
			// An earlier checkpoint by its own name, in 16 bits.
			first := filepath.Join(out, "checkpoints", "step-00000002")
			if _, err := (Export{From: first, Output: dir}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "exists already") {
				t.Errorf("written over: %v", err)
			}
			exported(t, Export{From: first, Output: dir, Replace: true, DType: dtype.BF16})
			saved = weights(t, out, 2)
			for name, values := range folderWeights(t, dir) {
				want := asFloats(saved[name])
				for i, v := range values {
					if v != dtype.BF16To(dtype.BF16From(want[i])) {
						t.Errorf("%s[%d] in bf16 is %v, of %v", name, i, v, want[i])
						break
					}
				}
			}
		})
	}
}

// A job's last checkpoint becomes a folder by itself, adapters one of adapters, and
// none where the job was not to save, was stopped, or no config.json can say its shape.
func TestAJobExportsItsModel(t *testing.T) {
	for name, c := range map[string]struct {
		sets []string
		file string
		said string
	}{
		"model":         {nil, "model.safetensors", `"export        `},
		"adapters":      {[]string{"lora.r=2"}, "adapter_model.safetensors", `"export        `},
		"not wanted":    {[]string{"checkpoint.export=false"}, "", ""},
		"nothing saved": {[]string{"checkpoint.final=false"}, "", ""},
		"strange shape": {[]string{"model.qkv_bias=true"}, "", "no model folder is made: a model of architecture llama with qkv_bias true"},
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			said := mustTrain(t, 2, append([]string{"output=" + out, "train.micro_batch=6", "checkpoint.export=true"}, c.sets...)...)
			if c.file == "" && exists(filepath.Join(out, "export")) {
				t.Error("there is a folder")
			}
			if c.file != "" && !exists(filepath.Join(out, "export", c.file)) {
				t.Errorf("no %s", c.file)
			}
			if !strings.Contains(said, c.said) {
				t.Errorf("it lacks %q:\n%s", c.said, said)
			}
		})
	}
}

// A model of bytes has the tokenizer of bytes, and its chat template.
func TestExportedModelOfBytesHasATokenizer(t *testing.T) {
	out, dir := t.TempDir(), filepath.Join(t.TempDir(), "model")
	text, template := filepath.Join(t.TempDir(), "text"), filepath.Join(t.TempDir(), "chat.jinja")
	for path, content := range map[string]string{text: strings.Repeat("A line of text.\n", 100), template: "{{ messages[0]['content'] }}"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustTrain(t, 1, "output="+out, "data.format=text", "data.train="+text, "model.vocab=256", "eval.every=0", "train.max_steps=2")
	exported(t, Export{From: out, Output: dir})
	tok, err := tokenizer.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode("ab"); len(ids) != 2 || ids[0] != 'a' {
		t.Errorf("ab is %v", ids)
	}
	for _, name := range []string{"config.json", generationFile} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), `"eos_token_id": 0`) {
			t.Errorf("%s does not say what ends a text: %s, %v", name, text, err)
		}
	}
}

// Adapters become a folder of adapters, or a model whose weights are the base's and
// alpha/r · B·A more, by export and by merge alike.
func TestExportedAdapters(t *testing.T) {
	parent := t.TempDir()
	base, out := filepath.Join(parent, "base"), filepath.Join(parent, "lora")
	mustTrain(t, 1, "output="+filepath.Join(parent, "first"), "train.max_steps=2")
	exported(t, Export{From: filepath.Join(parent, "first"), Output: base})
	const r, alpha = 3, 6.0
	mustTrain(t, 1, "model.path="+base, "output="+out, "lora.r=3", "lora.alpha=6", "lora.targets=[q_proj,down_proj]")
	adapters, merged := filepath.Join(parent, "adapters"), filepath.Join(parent, "merged")
	exported(t, Export{From: out, Output: adapters})
	exported(t, Export{From: out, Output: merged, Merge: true})

	f, err := lora.Open(adapters)
	if err != nil {
		t.Fatal(err)
	}
	if f.Config.R != r || f.Base != base {
		t.Errorf("the adapters' rank is %d, and they are for %s", f.Config.R, f.Base)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	was, is, saved := folderWeights(t, base), folderWeights(t, merged), weights(t, out, 6)
	changed := 0
	for name, before := range was {
		module := strings.TrimSuffix(name, ".weight")
		a, b := asFloats(saved[module+".lora_A.weight"]), asFloats(saved[module+".lora_B.weight"])
		if len(a) == 0 {
			for i, v := range is[name] {
				if v != before[i] {
					t.Fatalf("%s, which has no adapter, has changed", name)
				}
			}
			continue
		}
		changed++
		in := len(a) / r
		for i, v := range is[name] {
			want := float64(before[i])
			for k := range r {
				want += alpha / r * float64(b[i/in*r+k]) * float64(a[k*in+i%in])
			}
			if math.Abs(float64(v)-want) > 1e-6 {
				t.Fatalf("%s[%d] is %v, want %v", name, i, v, want)
			}
		}
	}
	if changed != 4 {
		t.Errorf("%d weights have adapters, want 4; the checkpoint has %v", changed, maps.Keys(saved))
	}
	again := filepath.Join(parent, "again")
	if err := (Merge{Model: base, Adapters: adapters, Output: again}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, values := range folderWeights(t, again) {
		for i, v := range values {
			if v != is[name][i] {
				t.Fatalf("merge and export --merge differ: %s[%d] is %v and %v", name, i, v, is[name][i])
			}
		}
	}
	if err := (Merge{Model: base, Adapters: base, Output: filepath.Join(parent, "never")}).Run(t.Context()); err == nil {
		t.Error("a model was merged as if it were adapters")
	}
}

// An export that is interrupted leaves nothing, and the next end of the job removes what
// one has left that was killed.
func TestExportEnds(t *testing.T) {
	out, asked := t.TempDir(), errors.New("asked to")
	left := filepath.Join(out, ".export.tmp-0123456789abcdef")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, 1, "output="+out, "train.max_steps=2", "checkpoint.export=true")
	if exists(left) {
		t.Error("what a killed job has left is still there")
	}
	ctx, end := context.WithCancelCause(t.Context())
	end(asked)
	parent := t.TempDir()
	if _, err := (Export{From: out, Output: filepath.Join(parent, "a")}).Run(ctx); !errors.Is(err, asked) {
		t.Errorf("an export that is interrupted: %v", err)
	}
	if all, err := os.ReadDir(parent); err != nil || len(all) > 0 {
		t.Errorf("it left %v, %v", all, err)
	}
}

// A model's folder that has been moved since the job is told by Model.
func TestExportOfAMovedModel(t *testing.T) {
	parent := t.TempDir()
	base, moved, out := filepath.Join(parent, "base"), filepath.Join(parent, "moved"), filepath.Join(parent, "job")
	mustTrain(t, 1, "output="+filepath.Join(parent, "first"), "train.max_steps=2")
	exported(t, Export{From: filepath.Join(parent, "first"), Output: base})
	mustTrain(t, 1, "output="+out, "model.path="+base, "train.max_steps=2")
	if err := os.Rename(base, moved); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(parent, "to")
	if _, err := (Export{From: out, Output: to}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--model says where") {
		t.Errorf("without its model's folder: %v", err)
	}
	exported(t, Export{From: out, Model: moved, Output: to})
}

// What cannot be exported is said in a sentence that names it.
func TestExportRefuses(t *testing.T) {
	out := t.TempDir()
	mustTrain(t, 1, "output="+out, "train.max_steps=2", "lora.r=2")
	whole := filepath.Join(out, "whole")
	mustTrain(t, 1, "output="+whole, "train.max_steps=2")
	for want, e := range map[string]Export{
		"want a checkpoint, or the output folder": {From: filepath.Join(out, "nowhere"), Output: filepath.Join(out, "a")},
		"there is no folder to merge them into":   {From: out, Output: filepath.Join(out, "b"), Merge: true},
		"there are no adapters to merge":          {From: whole, Output: filepath.Join(out, "d"), Merge: true},
	} {
		if _, err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	damaged := filepath.Join(out, "checkpoints", "step-00000002", "model.safetensors")
	b, err := os.ReadFile(damaged)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(damaged, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Export{From: out, Output: filepath.Join(out, "c")}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no complete checkpoint") {
		t.Errorf("a damaged checkpoint: %v", err)
	}
}

// A job does not train on what its own export replaces, anew or going on.
func TestJobKeepsItsInput(t *testing.T) {
	out := t.TempDir()
	mustTrain(t, 1, "output="+out, "train.max_steps=2", "checkpoint.export=true")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(out, "export"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(out, "export"), link} {
		_, err := trainRanks(t, t.Context(), 2, "output="+out, "model.path="+path, "train.max_steps=2")
		if err == nil || !strings.Contains(err.Error(), "model.path: "+path+" lies in the job's own output") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if all := folderWeights(t, filepath.Join(out, "export")); len(all) == 0 {
		t.Error("the model is no longer there")
	}
	mustTrain(t, 1, "output="+filepath.Join(out, "next"), "model.path="+link, "train.max_steps=2")
}
