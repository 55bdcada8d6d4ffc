package config

import (
	"strings"
	"testing"
)

const images = `
model: {arch: gorgonia-mlp}
data: {train: [some/folder], format: mnist}
train: {epochs: 2}
`

// What follows from a classifier is filled in, and survives being written and read.
func TestClassifiersAreResolved(t *testing.T) {
	for arch, layers := range map[string]int{"gorgonia-mlp": 1, "gorgonia-convnet": 2} {
		c, err := Parse("t.yaml", []byte(images), []string{"model.arch=" + arch})
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("t.yaml", text, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Config{c, again} {
			if c.Model.Layers != layers || c.Data.SeqLen != 784 || c.Eval.Steps != 0 || c.Eval.Every != 50 || c.Checkpoint.Export {
				t.Errorf("%s: %d layers, sequences of %d, evaluations of %d batches every %d steps, export %t",
					arch, c.Model.Layers, c.Data.SeqLen, c.Eval.Steps, c.Eval.Every, c.Checkpoint.Export)
			}
		}
	}
}

// What a classifier has not, and what images have not, is refused by its name.
func TestClassifiersRefuseWhatTheyHaveNot(t *testing.T) {
	for _, x := range []struct{ set, want string }{
		{"model.heads=8", "model.heads: 8: this is for language models"},
		{"model.vocab=300", "model.vocab: 300"},
		{"model.attention=native", "model.attention"},
		{"lora.r=4", "lora.r: 4"},
		{"sample.every=10", "sample.every: 10"},
		{"train.recompute=block", "train.recompute"},
		{"train.device=cuda", "computes on the CPU"},
		{"checkpoint.export=true", "safetensors"},
		{"data.format=text", "give data.format: mnist"},
		{"data.seq_len=100", "has 784 pixels"},
		{"data.train=a,b", "names 2 folders"},
		{"data.eval=a", "data.eval"},
		{"data.eval_split=0.1", "data.eval_split: 0.1"},
		{"data.max_bytes=1000", "data.max_bytes"},
		{"data.packing=false", "data.packing: false"},
		{"data.tokenizer=bytes", "data.tokenizer"},
		{"data.train_on=all", "data.train_on"},
		{"data.dtype=uint32", "data.dtype"},
		{"data.fields.text=x", "data.fields.text"},
		{"model.arch=llama", "gorgonia-mlp and gorgonia-convnet"},
	} {
		_, err := Parse("t.yaml", []byte(images), []string{x.set})
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: the error is %v, want %q", x.set, err, x.want)
		}
	}
	_, err := Parse("t.yaml", []byte(images), []string{"model.arch=gorgonia-convnet", "model.layers=3"})
	if err == nil || !strings.Contains(err.Error(), "2 convolutions") {
		t.Errorf("the error is %v", err)
	}
}
