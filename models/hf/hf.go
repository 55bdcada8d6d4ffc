// Package hf reads and writes models in Hugging Face's format: a folder with
// config.json and model.safetensors, or its shards and their index.
//
// Supported are LlamaForCausalLM with the positions of Llama 3.1 and later,
// MistralForCausalLM without a sliding window, Qwen2ForCausalLM, Qwen3ForCausalLM
// and GPT2LMHeadModel. A setting of config.json that would change what the model
// computes, and is not implemented, is refused by name.
package hf

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
)

// Folder is an opened model: its configuration, and its weights on disk.
type Folder struct {
	Dir  string
	Arch string // llama, mistral, qwen2, qwen3 or gpt2
	// Notes are settings of config.json that have no effect here, a sentence
	// each, for the user to read.
	Notes []string

	family family
	spec   *decoder.Spec
	file   *safetensors.Reader
	dtype  dtype.DType
	names  map[string]string // in the file, of each part of a parameter
}

// family is what the package needs of a model family.
type family interface {
	describe(dt dtype.DType) (*decoder.Spec, error)
	// stored says under which names files hold a part of dims dimensions, and
	// whether as [I,O].
	stored(part string, dims int) (names []string, transposed bool)
	// ignored says that a tensor of that name belongs to no parameter.
	ignored(name string) bool
	// shape is that of ReadShape, without the architecture.
	shape() Shape
	// tied names two equal tensors of which files of a tied model may hold
	// both; head is "" for an untied one.
	tied() (head, embedding string)
}

// Open reads the configuration and the headers of the weights, and checks that
// every tensor is there, has the shape that the configuration asks for, and that
// there are no others. dt is the type in which the model computes, whatever that
// of the file. Close releases the files.
func Open(dir string, dt dtype.DType) (*Folder, error) {
	f := &Folder{Dir: dir, dtype: dt}
	if err := f.configure(); err != nil {
		return nil, err
	}
	var err error
	if f.spec, err = f.family.describe(dt); err != nil {
		return nil, fmt.Errorf("%s: config.json: %w", dir, err)
	}
	if f.file, err = safetensors.Open(dir); err != nil {
		return nil, err
	}
	if err := f.match(); err != nil {
		return nil, errors.Join(err, f.file.Close())
	}
	return f, nil
}

// Close releases the files.
func (f *Folder) Close() error { return f.file.Close() }

// Params describes the parameters, as the Params of a model built from the
// folder does: equal, but not the same pointers.
func (f *Folder) Params() []*param.Param { return f.spec.Params() }

// Spec describes the model, for plans of its memory. Build from NewModel.
func (f *Folder) Spec() *decoder.Spec { return f.spec }

// Describe describes the model anew: for who changes the description, and builds the
// model of it.
func (f *Folder) Describe() (*decoder.Spec, error) {
	spec, err := f.family.describe(f.dtype)
	if err != nil {
		return nil, fmt.Errorf("%s: config.json: %w", f.Dir, err)
	}
	return spec, nil
}

// NewModel builds the model. Its weights are whoever's that holds them: Load
// gives their values.
func (f *Folder) NewModel(env models.Env) (*decoder.Model, error) {
	spec, err := f.Describe()
	if err != nil {
		return nil, err
	}
	return decoder.New(spec, env)
}
