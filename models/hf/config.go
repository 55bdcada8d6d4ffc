package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// classes are transformers' names of the supported models, by model_type.
var classes = map[string]string{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gpt2": "GPT2LMHeadModel"}

// settings is config.json. The functions that read it note what is missing.
type settings struct {
	values map[string]json.RawMessage
	errs   []error
	notes  []string
}

// configure reads config.json and picks the family.
func (f *Folder) configure() error {
	path := filepath.Join(f.Dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s is no Hugging Face model: %w", f.Dir, err)
	}
	c := &settings{}
	if err := json.Unmarshal(text, &c.values); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f.Arch = c.text("model_type", "")
	class := classes[f.Arch]
	var named []string
	c.read("architectures", &named)
	if class == "" || len(named) > 0 && !slices.Contains(named, class) {
		return fmt.Errorf("%s: a model of type %q and architecture %q; supported are %s",
			path, f.Arch, named, strings.Join(slices.Sorted(maps.Values(classes)), ", "))
	}
	c.refuse("quantization_config", "quantized weights")
	switch f.Arch {
	case "gpt2":
		f.family = c.gpt2()
	default:
		f.family = c.llama(f.Arch)
	}
	f.Notes = c.notes
	if err := errors.Join(c.errs...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (c *settings) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// read decodes key into to and reports whether it was there, and not null.
func (c *settings) read(key string, to any) bool {
	raw, ok := c.values[key]
	if !ok || string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, to); err != nil {
		c.fail("%s: %v", key, err)
		return false
	}
	return true
}

// integer is a key that must be there.
func (c *settings) integer(key string) int {
	var v int
	failed := len(c.errs)
	if !c.read(key, &v) && len(c.errs) == failed {
		c.fail("%s is missing", key)
	}
	return v
}

// or is key's value, or otherwise.
func or[T any](c *settings, key string, otherwise T) T {
	v := otherwise
	c.read(key, &v)
	return v
}

func (c *settings) text(key, otherwise string) string { return or(c, key, otherwise) }

// want refuses a value of key other than those given; the first is the default.
func want[T comparable](c *settings, key string, values ...T) {
	if v := or(c, key, values[0]); !slices.Contains(values, v) {
		c.fail("%s is %v; supported is %v", key, v, values)
	}
}

// refuse does not accept key, whatever it says.
func (c *settings) refuse(key, what string) {
	if raw, ok := c.values[key]; ok && string(raw) != "null" {
		c.fail("%s asks for %s, which is not supported: %s", key, what, raw)
	}
}

// dropout notes probabilities that are not zero: nothing is dropped here.
func (c *settings) dropout(keys ...string) {
	for _, key := range keys {
		if p := or(c, key, 0.0); p != 0 {
			c.notes = append(c.notes, fmt.Sprintf("config.json sets %s to %v; models train without dropout here", key, p))
		}
	}
}
