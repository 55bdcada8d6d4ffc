package config

import "strings"

// pixels is the length of an image of format mnist as a sequence.
const pixels = 28 * 28

// Images says that the data is of images, of which each has one target.
func (d *Data) Images() bool { return d.Format == "mnist" }

// Classifies says that the model is a built-in classifier of images.
func (m *Model) Classifies() bool { return m.Path == "" && strings.HasPrefix(m.Arch, "gorgonia-") }

// resolveClassifier fills in what follows from a classifier's architecture.
func (c *Config) resolveClassifier(given func(key string) bool) {
	if !given("model.layers") {
		c.Model.Layers = 1
		if c.Model.Arch == "gorgonia-convnet" {
			c.Model.Layers = convolutions
		}
	}
	if !given("checkpoint.export") {
		c.Checkpoint.Export = false
	}
}

// convolutions is how many a gorgonia-convnet has.
const convolutions = 2

// resolveImages fills in what follows from data of images.
func (c *Config) resolveImages(given func(key string) bool) {
	if !c.Data.Images() {
		return
	}
	if !given("data.seq_len") {
		c.Data.SeqLen = pixels
	}
	if !given("eval.steps") {
		c.Eval.Steps = 0
	}
}

// checkClassifier refuses what a classifier of images has not.
func (c *Config) checkClassifier(ps *problems) {
	m := &c.Model
	if m.Arch == "gorgonia-convnet" && m.Layers != convolutions {
		ps.add("model.layers model.arch", "%d: a gorgonia-convnet has %d convolutions; leave the key out", m.Layers, convolutions)
	}
	if !c.Data.Images() {
		ps.add("data.format model.arch", "%s: %s classifies images; give data.format: mnist", c.Data.Format, m.Arch)
	}
	for _, key := range []string{
		"model.heads", "model.kv_heads", "model.head_dim", "model.ffn", "model.vocab", "model.max_seq_len", "model.tie_embeddings",
		"model.qkv_bias", "model.rope_theta", "model.norm_eps", "model.attention", "lora.r", "sample.every", "train.recompute",
	} {
		if c.differs(key) {
			ps.add(key+" model.arch", "%s: this is for language models, and model.arch is %s; leave the key out", show(lookup(key).in(c)), m.Arch)
		}
	}
	if c.Checkpoint.Export {
		ps.add("checkpoint.export model.arch", "true: there is no format of Hugging Face's for a %s; leave the key out. The weights are in the checkpoint, as safetensors", m.Arch)
	}
	if c.Train.Device == "cuda" {
		ps.add("train.device model.arch", "cuda: a %s computes on the CPU", m.Arch)
	}
}

// checkImages refuses what data of images has not, and models that are not for it.
func (c *Config) checkImages(ps *problems) {
	d := &c.Data
	if !d.Images() {
		return
	}
	if !c.Model.Classifies() {
		ps.add("data.format model.arch", "%s: images are for model.arch gorgonia-mlp and gorgonia-convnet", d.Format)
	}
	if d.SeqLen != pixels {
		ps.add("data.seq_len data.format", "%d: an image of data.format %s has %d pixels; leave the key out", d.SeqLen, d.Format, pixels)
	}
	if len(d.Train) > 1 {
		ps.add("data.train data.format", "names %d folders: want one, with the four files of data.format %s", len(d.Train), d.Format)
	}
	for _, key := range []string{"data.eval", "data.eval_split", "data.max_bytes"} {
		if c.differs(key) {
			ps.add(key+" data.format", "%s: images of data.format %s are all read, and evaluated on the test images in the folder; leave the key out", show(lookup(key).in(c)), d.Format)
		}
	}
}
