package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/mapped"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Folder is adapters on disk, in PEFT's format. Close releases the files.
type Folder struct {
	Dir string
	// Config is what Add makes the same adapters of: its Targets are the layers that the
	// file has, by their full names. There is no Seed.
	Config Config
	Base   string // the folder or the name of the model that they are for, where it is said

	file *safetensors.Reader
}

// readable are the element types that adapters may have in a file.
var readable = []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}

// Open reads the settings and the header of the weights. A setting that would change
// what the adapters compute, and is not implemented, is refused by name. Fits says
// whether the adapters are for a model.
func Open(dir string) (*Folder, error) {
	f := &Folder{Dir: dir}
	if err := f.configure(); err != nil {
		return nil, err
	}
	var err error
	if f.file, err = safetensors.Open(filepath.Join(dir, WeightsFile)); err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	if err := f.list(); err != nil {
		return nil, errors.Join(err, f.file.Close())
	}
	return f, nil
}

// Close releases the files.
func (f *Folder) Close() error { return f.file.Close() }

// harmless are settings that say nothing of what trained adapters compute.
var harmless = []string{
	"auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version", "fan_in_fan_out",
	"megatron_core", "loftq_config", "corda_config", "eva_config", "qalora_group_size", "init_lora_weights",
	"peft_type", "r", "lora_alpha", "lora_dropout", "target_modules",
}

// configure reads adapter_config.json.
func (f *Folder) configure() error {
	path := filepath.Join(f.Dir, ConfigFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("lora: %s holds no adapters: %w", f.Dir, err)
	}
	var all map[string]json.RawMessage
	var c struct {
		Type    string          `json:"peft_type"`
		Base    *string         `json:"base_model_name_or_path"`
		Bias    string          `json:"bias"`
		R       int             `json:"r"`
		Alpha   float64         `json:"lora_alpha"`
		Dropout float64         `json:"lora_dropout"`
		Init    json.RawMessage `json:"init_lora_weights"`
	}
	if err := errors.Join(json.Unmarshal(text, &all), json.Unmarshal(text, &c)); err != nil {
		return fmt.Errorf("lora: %s: %w", path, err)
	}
	if c.Type != "LORA" {
		return fmt.Errorf("lora: %s: adapters of type %q; supported is LORA", path, c.Type)
	}
	var refused []string
	if c.Bias != "none" && c.Bias != "" {
		refused = append(refused, "bias is "+c.Bias)
	}
	// Others than these first values are taken out of the base model's weights.
	if !slices.Contains([]string{"", "null", "true", "false", `"gaussian"`, `"orthogonal"`, `"eva"`}, string(c.Init)) {
		refused = append(refused, "init_lora_weights is "+string(c.Init))
	}
	for key, value := range all {
		if key != "bias" && !slices.Contains(harmless, key) && !unset(value) {
			refused = append(refused, fmt.Sprintf("%s is %s", key, value))
		}
	}
	if slices.Sort(refused); len(refused) > 0 {
		return fmt.Errorf("lora: %s: not supported: %s", path, strings.Join(refused, "; "))
	}
	if c.Base != nil {
		f.Base = *c.Base
	}
	f.Config = Config{R: c.R, Alpha: c.Alpha, Dropout: c.Dropout}
	if !(c.Alpha > 0) {
		return fmt.Errorf("lora: %s: lora_alpha is %v; it must be positive", path, c.Alpha)
	}
	if _, err := f.Config.complete(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// unset says that a setting asks for nothing.
func unset(value json.RawMessage) bool {
	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		return false
	}
	return slices.Contains([]string{"null", "false", "{}", "[]", `""`, "0"}, compact.String())
}

// list finds the layers that the file has adapters of. Both factors must be there, of
// the rank that the settings give, and nothing else.
func (f *Folder) list() error {
	var wrong []string
	seen := map[string]int{}
	for _, name := range f.file.Names() {
		base, ok := strings.CutPrefix(name, prefix)
		m, a := strings.CutSuffix(base, endA)
		m, b := strings.CutSuffix(m, endB)
		info, _ := f.file.Info(name)
		switch {
		case !ok || a == b:
			wrong = append(wrong, name+" is no adapter's factor")
			continue
		case !slices.Contains(readable, info.DType):
			wrong = append(wrong, fmt.Sprintf("%s is of type %s, want one of %v", name, info.Type, readable))
		case len(info.Shape) != 2 || a && info.Shape[0] != f.Config.R || b && info.Shape[1] != f.Config.R:
			wrong = append(wrong, fmt.Sprintf("%s has the shape %v, and r is %d", name, info.Shape, f.Config.R))
		}
		if seen[m]++; seen[m] == 2 {
			f.Config.Targets = append(f.Config.Targets, m)
		}
	}
	for m, n := range seen {
		if n == 1 {
			wrong = append(wrong, m+" has one factor, want two")
		}
	}
	if len(seen) == 0 {
		wrong = append(wrong, "there are no adapters in it")
	}
	slices.Sort(f.Config.Targets)
	return f.complain(wrong)
}

// complain makes an error of what is wrong with the weights, if anything is.
func (f *Folder) complain(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("lora: %s: %s", filepath.Join(f.Dir, WeightsFile), strings.Join(wrong, "; "))
}

// Fits checks that every adapter is for a layer of the model that s describes, of the
// shape that the layer has.
func (f *Folder) Fits(s *decoder.Spec) error {
	shapes := map[string][2]int{} // O and I
	for _, w := range s.Linears() {
		for _, part := range w.Split() {
			shapes[module(part.Name)] = [2]int{part.Rows, w.Shape[1]}
		}
	}
	var wrong []string
	for _, m := range f.Config.Targets {
		shape, ok := shapes[m]
		if !ok {
			wrong = append(wrong, m+" is no linear layer of the model's blocks")
			continue
		}
		a, _ := f.file.Info(prefix + m + endA)
		b, _ := f.file.Info(prefix + m + endB)
		if a.Shape[1] != shape[1] || b.Shape[0] != shape[0] {
			wrong = append(wrong, fmt.Sprintf("%s has %d inputs and %d outputs, the model's layer %d and %d", m, a.Shape[1], b.Shape[0], shape[1], shape[0]))
		}
	}
	return f.complain(wrong)
}

// Load calls set with the values of every parameter of l, which Add has made of f's
// Config. The slice is valid during the call only.
func (f *Folder) Load(l *Adapters, set func(p *param.Param, values []float32) error) error {
	if err := f.same(l); err != nil {
		return err
	}
	var values []float32
	for _, p := range l.params {
		values = slices.Grow(values[:0], p.Numel())[:p.Numel()]
		var err error
		p.EachPart(func(part param.Part, from, to int) {
			err = errors.Join(err, f.read(part.Name, []int{part.Rows, p.Shape[1]}, values[from:to]))
		})
		if err == nil {
			err = set(p, values)
		}
		if err != nil {
			return fmt.Errorf("lora: %s: %s: %w", f.Dir, p.Name, err)
		}
	}
	return nil
}

// same checks that l has f's layers and no others.
func (f *Folder) same(l *Adapters) error {
	have := slices.Sorted(slices.Values(l.Modules))
	if l.R != f.Config.R || l.Alpha != f.Config.Alpha || !slices.Equal(have, f.Config.Targets) {
		return fmt.Errorf("lora: %s holds adapters of rank %d and alpha %v on %d layers, the model has others, of rank %d and alpha %v on %d layers",
			f.Dir, f.Config.R, f.Config.Alpha, len(f.Config.Targets), l.R, l.Alpha, len(have))
	}
	return nil
}

// read writes a factor's values to out. A file that is shortened meanwhile is an error.
func (f *Folder) read(name string, shape []int, out []float32) (err error) {
	info, raw, err := f.file.Tensor(prefix + name)
	if err != nil {
		return err
	}
	if !slices.Equal(info.Shape, shape) {
		return fmt.Errorf("%s has the shape %v, want %v", info.Name, info.Shape, shape)
	}
	defer mapped.Shortened(f.file.Path(info.Name), debug.SetPanicOnFault(true), &err)
	vec.Widen(info.DType, out, raw)
	return nil
}
