package train

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/gpt2"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/runtime/param"
)

// architecture is a model that is described and not yet built.
type architecture struct {
	name   string
	params []*param.Param // as those of the built model, but not the same pointers
	vocab  int
	// memory is what the model needs beside its parameters, for the largest micro-batch.
	memory *models.Plan
	build  func(models.Env) (models.Model, error)
	// weights is where pretrained weights come from; nil where the seed makes them.
	weights *hf.Folder
}

// describe works out the model that the configuration names.
func describe(cfg *config.Config) (*architecture, error) {
	if cfg.Model.Path != "" {
		return describeFolder(cfg)
	}
	m := cfg.Model
	var spec *decoder.Spec
	var err error
	var build func(models.Env) (models.Model, error)
	switch m.Arch {
	case "llama", "qwen2":
		shape := llama.Config{
			Vocab: m.Vocab, Hidden: m.Hidden, Layers: m.Layers, Heads: m.Heads, KVHeads: m.KVHeads, FFN: m.FFN,
			MaxPositions: m.MaxSeqLen, RopeTheta: m.RopeTheta, NormEps: float32(m.NormEps), QKVBias: m.QKVBias, Tied: m.TieEmbed,
		}
		spec, err = llama.Describe(shape)
		build = func(env models.Env) (models.Model, error) { return llama.New(shape, env) }
	case "gpt2":
		shape := gpt2.Config{
			Vocab: m.Vocab, Hidden: m.Hidden, Layers: m.Layers, Heads: m.Heads, FFN: m.FFN,
			MaxPositions: m.MaxSeqLen, NormEps: float32(m.NormEps), Tied: m.TieEmbed,
		}
		spec, err = gpt2.Describe(shape)
		build = func(env models.Env) (models.Model, error) { return gpt2.New(shape, env) }
	default:
		return nil, fmt.Errorf("model.arch %s is not built in", m.Arch)
	}
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	memory, err := spec.Plan(cfg.Train.MicroBatch, cfg.Data.SeqLen)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &architecture{name: m.Arch, params: spec.Params(), vocab: m.Vocab, memory: memory, build: build}, nil
}

func describeFolder(cfg *config.Config) (*architecture, error) {
	f, err := hf.Open(cfg.Model.Path)
	if err != nil {
		return nil, fmt.Errorf("model.path: %w", err)
	}
	memory, err := f.PlanMemory(cfg.Train.MicroBatch, cfg.Data.SeqLen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data.seq_len and model.path %s: %w", f.Dir, err), f.Close())
	}
	params := f.Params()
	return &architecture{
		name: f.Arch, params: params, vocab: params[0].Shape[0], memory: memory, weights: f, // the embedding [V,C] comes first
		build: func(env models.Env) (models.Model, error) { return f.NewModel(env) },
	}, nil
}

// close releases the folder of pretrained weights.
func (a *architecture) close() error {
	if a.weights == nil {
		return nil
	}
	return a.weights.Close()
}

// sizes counts the elements of the parameters, and of those that are trained.
func (a *architecture) sizes() (all, trained int64) {
	for _, p := range a.params {
		all += int64(p.Numel())
		if !p.Frozen {
			trained += int64(p.Numel())
		}
	}
	return all, trained
}
