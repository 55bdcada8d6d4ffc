package lora

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/publish"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// The files of adapters, as PEFT names them.
const (
	ConfigFile  = "adapter_config.json"
	WeightsFile = "adapter_model.safetensors"

	// prefix is what PEFT's wrapper puts before a model's names.
	prefix = "base_model.model."
)

// Base is the model that adapters are for.
type Base struct {
	Path string // its folder; none where the seed made the weights
	// Transposed says that its files hold the layers' weights as [I,O], as GPT-2's do.
	Transposed bool
}

// peft is PEFT's settings: those that every version of it knows.
type peft struct {
	AlphaPattern  map[string]float64 `json:"alpha_pattern"`
	AutoMapping   *string            `json:"auto_mapping"`
	Base          *string            `json:"base_model_name_or_path"`
	Bias          string             `json:"bias"`
	FanInFanOut   bool               `json:"fan_in_fan_out"`
	InferenceMode bool               `json:"inference_mode"`
	Init          bool               `json:"init_lora_weights"`
	LayersPattern *string            `json:"layers_pattern"`
	Layers        []int              `json:"layers_to_transform"`
	Alpha         float64            `json:"lora_alpha"`
	Dropout       float64            `json:"lora_dropout"`
	ModulesToSave []string           `json:"modules_to_save"`
	Type          string             `json:"peft_type"`
	R             int                `json:"r"`
	RankPattern   map[string]int     `json:"rank_pattern"`
	Revision      *string            `json:"revision"`
	TargetModules []string           `json:"target_modules"`
	TaskType      string             `json:"task_type"`
}

// Tensors is the adapters as Save writes them, in f32. data says how a factor is
// written, which is a part of one of Params and named so: see safetensors.Tensor.
//
// Where values are gathered from several ranks, the others sort the list with
// safetensors.Sort and call each Data, as rank 0 does in Save.
func (l *Adapters) Tensors(data func(factor string) func(io.Writer) error) (list []safetensors.Tensor) {
	for _, p := range l.params {
		for _, part := range p.Split() {
			list = append(list, safetensors.Tensor{
				Name: prefix + part.Name, DType: dtype.F32, Shape: []int{part.Rows, p.Shape[1]}, Data: data(part.Name),
			})
		}
	}
	return list
}

// Save writes adapter_config.json and adapter_model.safetensors, which PEFT loads, to
// the folder dir, where neither may be yet, and syncs them to disk. The folder is the
// caller's to make and to publish.
func (l *Adapters) Save(dir string, b Base, tensors []safetensors.Tensor) error {
	settings := peft{
		AlphaPattern: map[string]float64{}, Bias: "none", FanInFanOut: b.Transposed, InferenceMode: true, Init: true,
		Alpha: l.Alpha, Dropout: l.Dropout, Type: "LORA", R: l.R, RankPattern: map[string]int{},
		TargetModules: l.targets(), TaskType: "CAUSAL_LM",
	}
	if b.Path != "" {
		settings.Base = &b.Path
	}
	text, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return fmt.Errorf("lora: %s: %w", ConfigFile, err)
	}
	if err := safetensors.WriteFile(filepath.Join(dir, WeightsFile), tensors, nil); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	if err := publish.File(filepath.Join(dir, ConfigFile), append(text, '\n')); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	return nil
}

// targets names the layers as PEFT finds them: by the ends of their names, too.
func (l *Adapters) targets() []string {
	names := slices.Clone(l.Targets)
	if slices.ContainsFunc(names, everything) || len(names) == 0 {
		names = nil
		for _, m := range l.Modules {
			names = append(names, kind(m))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kind is the last word of a layer's name.
func kind(module string) string { return module[strings.LastIndexByte(module, '.')+1:] }

// everything says that a target stands for all layers.
func everything(target string) bool { return target == "all" || target == "all-linear" }
