package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/sample"
	"github.com/gorun-dev/gorun/models/tokenizer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// compatIDs are what every model here reads: text of its own kind, and bytes of none.
var compatIDs = append([]int32("The 1st line, and"), 0xc3, 0x9f, 1, 127, ' ', 't', 'h')

// foreign are folders that no job makes from nothing: their config.json says more than
// train.yaml can.
var foreign = map[string]string{
	"mistral": `{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 256, "hidden_size": 32,
		"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "sliding_window": null,
		"tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 0, "attention_dropout": 0.0}`,
	"llama3": `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32,
		"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
		"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
		"tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 0}`,
}

// writeForeign writes a folder of random weights, with the tokenizer of bytes.
func writeForeign(t *testing.T, dir, config string) {
	t.Helper()
	files, err := tokenizer.BytesFiles()
	if err != nil {
		t.Fatal(err)
	}
	files["config.json"] = []byte(config)
	random := rand.New(rand.NewPCG(1, 2))
	err = hf.Output{Dir: dir, Files: files}.Write(func(_ *param.Param, _ int, values []float32) error {
		for i := range values {
			values[i] = float32(random.NormFloat64() / 8)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// compatible are the folders that the test of compatibility asks about.
type compatible struct {
	dir    string
	logits map[string][][]float32 // behind each of compatIDs, of the models that were trained, while they were at hand
	asked  struct {
		IDs      []int32  `json:"ids"`
		Models   []string `json:"models"`
		Adapters []string `json:"adapters"`
		Files    []string `json:"files"`
	}
}

func (c *compatible) in(name string) string { return filepath.Join(c.dir, name) }

// train trains a model of bytes a little and exports it as name.
func (c *compatible) train(t *testing.T, name string, sets ...string) {
	t.Helper()
	out := c.in(name + ".run")
	_, errs := trainChanged(t, 1, func(*job) {}, func(j *job) { c.logits[name] = logitsOf(t, j, j.model.(models.Generator), j.weights) }, append(sets, "output="+out, "data.format=text", "data.train="+c.in("text"), "data.tokenizer=bytes", "data.seq_len=32", "model.vocab=256", "model.max_seq_len=64",
		"train.max_steps=40", "train.micro_batch=4", "checkpoint.every=0", "eval.every=0")...)
	if errs[0] != nil {
		t.Fatalf("%s: %v", name, errs[0])
	}
	exported(t, Export{From: out, Output: c.in(name)})
	c.asked.Models = append(c.asked.Models, c.in(name))
	checkpoints, err := filepath.Glob(filepath.Join(out, "checkpoints", "*", "*.safetensors"))
	if err != nil || len(checkpoints) == 0 {
		t.Fatalf("checkpoints of %s: %v, %v", name, checkpoints, err)
	}
	c.asked.Files = append(c.asked.Files, checkpoints...)
}

// shard writes a folder again, in files of at most size bytes each.
func (c *compatible) shard(t *testing.T, from, to string, size int64) {
	t.Helper()
	f, err := hf.Open(c.in(from), dtype.F32)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = hf.Output{Dir: c.in(to), Source: c.in(from), ShardBytes: size}.Write(func(p *param.Param, from int, values []float32) error {
		whole := make([]float32, p.Numel())
		if err := f.Read(p, whole); err != nil {
			return err
		}
		copy(values, whole[from:])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.asked.Models = append(c.asked.Models, c.in(to))
}

// answers are what testdata/compat.py prints.
type answers struct {
	Models map[string]struct {
		Class, DType string
		Complaints   map[string][]string
		Warnings     []string
		Logits       [][]float64
		Continued    []int32
		Ends         any
	}
	Adapters map[string]struct{ Logits, Merged [][]float64 }
	Files    map[string]struct {
		Metadata map[string]string
		Tensors  map[string]string
	}
}

// logitsOf are a model's logits behind each of compatIDs.
func logitsOf(t *testing.T, j *job, g models.Generator, w param.Weights) (logits [][]float32) {
	err := g.Reset(len(compatIDs))
	for i := range compatIDs {
		var out tensor.Tensor
		if err == nil {
			out, err = tensor.Alloc(j.device, dtype.F32, g.Vocab())
		}
		if err == nil {
			err = g.Next(w, compatIDs[i:i+1], out)
		}
		if err == nil {
			err = j.compute.Synchronize(t.Context())
		}
		if err != nil {
			t.Error(err)
			return nil
		}
		logits = append(logits, slices.Clone(out.F32()))
	}
	return logits
}

// ours are the logits of a folder's model, and how it continues compatIDs, as gorun sample
// has it.
func ours(t *testing.T, folder string) (logits [][]float32, continued []int32) {
	t.Helper()
	g, err := OpenGenerator(t.Context(), GeneratorOptions{Model: folder, Device: "cpu", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	tok, err := tokenizer.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	if continued, err = g.Continue(t.Context(), compatIDs, sample.Options{MaxTokens: 24, Stop: tok.EOSIDs()}); err != nil {
		t.Fatal(err)
	}
	return logitsOf(t, g.j, g.model, g.weights), continued
}

// sameLogits compares f32 with f32: what differs is the order of sums.
func sameLogits(t *testing.T, what string, got [][]float64, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: logits behind %d tokens, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Errorf("%s: %d logits, want %d", what, len(got[i]), len(want[i]))
			return
		}
		largest := float64(0)
		for _, v := range want[i] {
			largest = max(largest, math.Abs(float64(v)))
		}
		for k, v := range want[i] {
			if !(math.Abs(got[i][k]-float64(v)) <= 1e-4*largest) || largest == 0 {
				t.Errorf("%s: logit %d behind token %d is %v, ours %v; the largest is %v", what, k, i, got[i][k], v, largest)
				return
			}
		}
	}
}

func newCompatible(t *testing.T) *compatible {
	c := &compatible{dir: t.TempDir(), logits: map[string][][]float32{}}
	c.asked.IDs, c.asked.Adapters = compatIDs, []string{}
	writeFiles(t, c.dir, map[string]string{"text": strings.Repeat("The 1st line, and the 2nd.\nThen ß.\n", 60)})
	return c
}

// The programs that users open our folders with compute from them what we do: one
// file or several, 32 bits or 16, every family, adapters and what they are merged into.
// So do we from the folders that these write.
func TestTransformersOpensWhatWeWrite(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "peft", "safetensors")
	c := newCompatible(t)
	c.train(t, "llama", "model.arch=llama")
	c.train(t, "qwen2", "model.arch=qwen2", "model.tie_embeddings=true")
	c.train(t, "gpt2", "model.arch=gpt2", "model.kv_heads=4")
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		writeForeign(t, c.in(name+".base"), foreign[name])
		c.train(t, name, "model.path="+c.in(name+".base"))
	}
	c.shard(t, "llama", "llama.sharded", 20_000)
	for _, name := range []string{"llama", "gpt2"} {
		exported(t, Export{From: c.in(name + ".run"), Output: c.in(name + ".bf16"), DType: dtype.BF16})
		c.asked.Models = append(c.asked.Models, c.in(name+".bf16"))
		c.adapt(t, name)
	}
	c.compare(t, python)
}

// Qwen3 is younger than the transformers that goes with the oldest torch. Its heads have
// norms, and a size of their own.
func TestTransformersOpensOurQwen3(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "peft", "safetensors")
	c := newCompatible(t)
	c.train(t, "qwen3", "model.arch=qwen3", "model.head_dim=12")
	// Norms that begin far from 1, under a config.json such as is published.
	writeForeign(t, c.in("qwen3tied.base"), `{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 256, "hidden_size": 32,
		"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "attention_bias": false, "attention_dropout": 0.0,
		"rope_scaling": null, "sliding_window": null, "use_sliding_window": false, "max_window_layers": 2, "tie_word_embeddings": true,
		"bos_token_id": 0, "eos_token_id": 0}`)
	c.train(t, "qwen3tied", "model.path="+c.in("qwen3tied.base"))
	c.adapt(t, "qwen3")
	c.compare(t, python, "--newer")
}

// adapt trains adapters for a model, and merges them.
func (c *compatible) adapt(t *testing.T, name string) {
	t.Helper()
	c.train(t, name+".adapters", "model.path="+c.in(name), "lora.r=3", "lora.alpha=6", "lora.dropout=0.1")
	c.asked.Models = c.asked.Models[:len(c.asked.Models)-1]
	c.asked.Adapters = append(c.asked.Adapters, c.in(name+".adapters"))
	exported(t, Export{From: c.in(name + ".adapters.run"), Output: c.in(name + ".merged"), Merge: true})
	c.asked.Models = append(c.asked.Models, c.in(name+".merged"))
}

// compare asks the programs about all folders, and holds their answers against ours.
func (c *compatible) compare(t *testing.T, python string, args ...string) {
	t.Helper()
	for _, folder := range append(c.asked.Models, c.asked.Adapters...) {
		files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
		if err != nil || len(files) == 0 || (len(files) > 1) != strings.Contains(folder, "sharded") {
			t.Fatalf("%s holds %v, %v", folder, files, err)
		}
		c.asked.Files = append(c.asked.Files, files...)
	}

	questions, err := json.Marshal(c.asked)
	if err != nil {
		t.Fatal(err)
	}
	var a answers
	if err := json.Unmarshal(testenv.RunPython(t, python, bytes.NewReader(questions), append([]string{filepath.Join("testdata", "compat.py")}, args...)...), &a); err != nil {
		t.Fatal(err)
	}
	c.compareModels(t, &a)
	c.compareAdapters(t, &a)
	c.compareFiles(t, &a)
}

func (c *compatible) compareModels(t *testing.T, a *answers) {
	classes := map[string]string{"llama": "LlamaForCausalLM", "llama3": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gpt2": "GPT2LMHeadModel", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3tied": "Qwen3ForCausalLM"}
	for _, folder := range c.asked.Models {
		name, kind, _ := strings.Cut(filepath.Base(folder), ".")
		got := a.Models[folder]
		if len(got.Complaints) > 0 || len(got.Warnings) > 0 {
			t.Errorf("%s: transformers complains: %v, %q", filepath.Base(folder), got.Complaints, got.Warnings)
		}
		want := "torch.float32"
		if kind == "bf16" {
			want = "torch.bfloat16"
		}
		if got.Class != classes[name] || got.DType != want {
			t.Errorf("%s is opened as %s in %s, want %s in %s", filepath.Base(folder), got.Class, got.DType, classes[name], want)
		}
		logits, continued := ours(t, folder)
		switch kind {
		case "", "sharded":
			logits = c.logits[name]
		case "merged":
			logits = c.logits[name+".adapters"]
		}
		sameLogits(t, filepath.Base(folder), got.Logits, logits)
		if n := len(got.Continued); n > 0 && got.Continued[n-1] == 0 {
			got.Continued = got.Continued[:n-1] // the token that ends a text, which ours leaves out
		}
		if !slices.Equal(got.Continued, continued) {
			t.Errorf("%s goes on with %v, ours with %v", filepath.Base(folder), got.Continued, continued)
		}
		logits, continued = ours(t, folder+".back")
		sameLogits(t, filepath.Base(folder)+", as transformers writes it,", got.Logits, logits)
		if !slices.Equal(got.Continued, continued) {
			t.Errorf("%s, as transformers writes it, goes on with %v, ours with %v", filepath.Base(folder), got.Continued, continued)
		}
		if ends, _ := got.Ends.(float64); got.Ends == nil || ends != 0 {
			t.Errorf("%s: texts end with %v, want 0", filepath.Base(folder), got.Ends)
		}
	}
}

func (c *compatible) compareAdapters(t *testing.T, a *answers) {
	for _, folder := range c.asked.Adapters {
		name := filepath.Base(folder)
		base, _, _ := strings.Cut(name, ".")
		changed := float64(0)
		for i, v := range c.logits[base][0] {
			changed = max(changed, math.Abs(float64(v-c.logits[name][0][i])))
		}
		if !(changed > 0.01) {
			t.Errorf("%s change logits by %v: nothing was learned", name, changed)
		}
		sameLogits(t, name+" in PEFT", a.Adapters[folder].Logits, c.logits[name])
		sameLogits(t, name+" merged by PEFT", a.Adapters[folder].Merged, c.logits[name])
	}
}

// compareFiles holds what safetensors finds in each file against what is there.
func (c *compatible) compareFiles(t *testing.T, a *answers) {
	types := map[string]string{"F32": "torch.float32", "BF16": "torch.bfloat16", "I64": "torch.int64", "U8": "torch.uint8"}
	for _, path := range c.asked.Files {
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		got, want := a.Files[path], map[string]string{}
		for _, name := range f.Names() {
			x, _ := f.Info(name)
			want[name] = fmt.Sprintf("%s %v", types[x.Type], x.Shape)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if got.Metadata["format"] != "pt" || len(want) == 0 || len(got.Tensors) != len(want) {
			t.Errorf("%s: safetensors finds %d tensors, of %v; want %d", path, len(got.Tensors), got.Metadata, len(want))
		}
		for name, x := range want {
			if got.Tensors[name] != x {
				t.Errorf("%s: safetensors finds %s to be %q, want %q", path, name, got.Tensors[name], x)
			}
		}
	}
}
