package config

import (
	"path/filepath"
	"strings"
)

// resolve works out what is not given. After it every value is explicit, so that
// a configuration that is written back and read again is the same on any
// machine. given tells which keys the file or a flag names; zero also asks for
// the derived value where the key's range allows it.
func (c *Config) resolve(name string, given func(key string) bool) {
	if !given("name") {
		c.Name = name
	}
	if !given("output") {
		c.Output = filepath.Join("runs", c.Name)
	}
	switch {
	case c.Model.Path != "":
		c.Model.forgetShape(given)
	case c.Model.Classifies():
		c.resolveClassifier(given)
	default:
		c.resolveShape(given)
	}
	c.resolveImages(given)
	if c.Lora.R > 0 && c.Lora.Alpha == 0 {
		c.Lora.Alpha = 2 * float64(c.Lora.R)
	}
	if !given("eval.every") && c.hasEvalData() {
		c.Eval.Every = 50
	}
}

// resolveShape fills in what follows from the architecture and the data.
func (c *Config) resolveShape(given func(key string) bool) {
	m := &c.Model
	gpt2, qwen := m.Arch == "gpt2", m.Arch == "qwen2" || m.Arch == "qwen3"
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.HeadDim == 0 && m.Heads > 0 && m.Hidden%m.Heads == 0 {
		m.HeadDim = m.Hidden / m.Heads
	}
	if m.FFN == 0 {
		if gpt2 {
			m.FFN = 4 * m.Hidden
		} else {
			m.FFN = (m.Hidden*8/3 + 31) / 32 * 32
		}
	}
	if m.Vocab == 0 && c.Data.Format != "tokens" && !c.Data.tokenizes(c.Model) {
		m.Vocab = 256
	}
	if m.MaxSeqLen == 0 {
		m.MaxSeqLen = c.Data.SeqLen
	}
	if !given("model.tie_embeddings") {
		m.TieEmbed = gpt2
	}
	if !given("model.qkv_bias") {
		m.QKVBias = gpt2 || m.Arch == "qwen2"
	}
	if m.RopeTheta == 0 && !gpt2 {
		m.RopeTheta = 10000
		if qwen {
			m.RopeTheta = 1e6
		}
	}
	if m.NormEps == 0 {
		m.NormEps = 1e-5
		if qwen {
			m.NormEps = 1e-6
		}
	}
}

// forgetShape clears the keys that the model's folder answers, but for those that
// are given: checks compare these with the folder.
func (m *Model) forgetShape(given func(key string) bool) {
	c := &Config{}
	c.Model = *m
	for _, f := range root.child("model").children {
		if f.describesShape() && !given(f.path) {
			f.in(c).SetZero()
		}
	}
	*m = c.Model
}

// nobody gives no key.
func nobody(string) bool { return false }

// folderAnswers says that key is one that the folder in model.path answers.
func (c *Config) folderAnswers(key string) bool {
	return c.Model.Path != "" && lookup(key).describesShape()
}

// ShapeKeys lists the keys of the model's shape: beside model.path, a key that is
// given must say what the folder says, and Checks may see to that.
func ShapeKeys() []string {
	var keys []string
	for _, f := range leaves {
		if f.describesShape() {
			keys = append(keys, f.path)
		}
	}
	return keys
}

// Value is the value of a key, such as "model.layers".
func (c *Config) Value(key string) any { return lookup(key).in(c).Interface() }

// describesShape is true for the keys of model that a folder's config.json
// answers.
func (f *field) describesShape() bool {
	return strings.HasPrefix(f.path, "model.") && f.path != "model.path" && f.path != "model.attention"
}

func (c *Config) hasEvalData() bool {
	return len(c.Data.Eval) > 0 || c.Data.EvalSplit > 0 || c.Data.Format == "synthetic" || c.Data.Images()
}
