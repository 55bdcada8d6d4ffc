package train

import (
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/models/gpt2"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/models/lora"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/zero"
)

// architecture is a model that is described and not yet built.
type architecture struct {
	name   string
	on     device.Kind    // where it will be built
	why    string         // why not on a GPU, where that is not the user's wish
	params []*param.Param // as those of the built model, but not the same pointers
	vocab  int
	shape  decoder.Shape
	flops  float64 // of training, for each token
	// memory is what the model needs beside its parameters, for the largest micro-batch.
	memory *models.Plan
	// attention is the bytes of its scratch memory, once the library that computes it
	// has been asked.
	attention int64
	ranks     int        // on this host
	world     int        // of the job; whoever asks for the memory sets it by spread
	shards    *zero.Plan // nil under plain data parallelism
	// fresh describes the model anew, without adapters.
	fresh func() (*decoder.Spec, error)
	// adapters are those of the model that was described last; nil where there are none.
	adapters *lora.Adapters
	// weights is where pretrained weights come from; nil where the seed makes them.
	weights *hf.Folder
	cfg     *config.Config
	// compression is of gradients on their way; nil for none.
	compression *compression
	// classifier is what is described where it is no language model; see images.go.
	classifier *gorgonia.Config
}

// describe works out the model that the configuration names, and where ranks ranks
// on this host will compute.
func describe(cfg *config.Config, ranks int, choose chooser) (*architecture, error) {
	if cfg.Model.Classifies() {
		return describeClassifier(cfg, ranks)
	}
	a, err := describeAs(cfg, dtype.F32)
	if err != nil {
		return nil, err
	}
	kind, why, err := choose(cfg.Train, a.spec.HeadDim, ranks)
	if err == nil {
		err = cfg.CheckDevice(kind.String(), why)
	}
	if err == nil && computeType(kind) != dtype.F32 {
		if err = a.close(); err == nil {
			a, err = describeAs(cfg, computeType(kind))
		}
	}
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.on, a.why, a.ranks = kind, why, ranks
	if a.memory, err = a.spec.Plan(cfg.Train.MicroBatch, cfg.Data.SeqLen, kind, recompute(cfg.Train)); err != nil {
		return nil, errors.Join(fmt.Errorf("data.seq_len: model: %w", err), a.close())
	}
	return &a.architecture, nil
}

// chooser decides on the device; see chooseDevice.
type chooser func(c config.Train, headDim, ranks int) (k device.Kind, why string, err error)

// described is an architecture and what its plan follows from.
type described struct {
	architecture
	spec *decoder.Spec
}

// describeAs describes the model with weights and activations of type dt.
func describeAs(cfg *config.Config, dt dtype.DType) (a *described, err error) {
	a = &described{architecture: architecture{cfg: cfg, name: cfg.Model.Arch, vocab: cfg.Model.Vocab}}
	m := cfg.Model
	switch {
	case m.Path != "":
		f, err := hf.Open(m.Path, dt)
		if err != nil {
			return a, fmt.Errorf("model.path: %w", err)
		}
		a.weights, a.name, a.fresh = f, f.Arch, f.Describe
		a.vocab = f.Spec().Vocab
	case m.Arch == "llama" || m.Arch == "qwen2" || m.Arch == "qwen3":
		shape := llama.Config{
			Vocab: m.Vocab, Hidden: m.Hidden, Layers: m.Layers, Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim,
			FFN: m.FFN, MaxPositions: m.MaxSeqLen, RopeTheta: m.RopeTheta, NormEps: float32(m.NormEps),
			QKVBias: m.QKVBias, QKNorm: m.Arch == "qwen3", Tied: m.TieEmbed, DType: dt,
		}
		a.fresh = func() (*decoder.Spec, error) { return llama.Describe(shape) }
	case m.Arch == "gpt2":
		shape := gpt2.Config{
			Vocab: m.Vocab, Hidden: m.Hidden, Layers: m.Layers, Heads: m.Heads, FFN: m.FFN,
			MaxPositions: m.MaxSeqLen, NormEps: float32(m.NormEps), Tied: m.TieEmbed, DType: dt,
		}
		a.fresh = func() (*decoder.Spec, error) { return gpt2.Describe(shape) }
	default:
		return a, fmt.Errorf("model.arch %s is no language model", m.Arch)
	}
	if a.spec, err = a.specify(); err != nil {
		return a, err
	}
	a.params, a.shape, a.flops = a.spec.Params(), a.spec.Shape, a.spec.FLOPs(cfg.Data.SeqLen)
	return a, nil
}

// specify describes the model anew, with adapters where the configuration has them.
func (a *architecture) specify() (*decoder.Spec, error) {
	s, err := a.fresh()
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	s.Name = a.name // of the architecture, for errors: a family has several
	c := a.cfg.Lora
	if c.R == 0 {
		return s, nil
	}
	a.adapters, err = lora.Add(s, lora.Config{R: c.R, Alpha: c.Alpha, Dropout: c.Dropout, Targets: c.Targets, Seed: a.cfg.Seed})
	return s, err
}

// build makes the language model.
func (a *architecture) build(env models.Env) (models.Model, error) {
	s, err := a.specify()
	if err != nil {
		return nil, err
	}
	return decoder.New(s, env)
}

// spread says over how many ranks the job is spread.
func (a *architecture) spread(world int) (err error) {
	a.world = world
	if a.compression, err = newCompression(a.cfg.Parallel); err != nil {
		return err
	}
	if stage(a.cfg.Parallel) == 0 {
		return a.compressReplicas()
	}
	a.shards, err = zero.NewPlan(a.params, max(world, 1), a.shardOptions(nil))
	if err == nil && a.compression != nil {
		a.compression.cost = a.compression.Cost(a.shards.Layout())
	}
	return err
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
