package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/lora"
	"github.com/gorun-dev/gorun/models/sample"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/trace"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Generator is a model of a folder in Hugging Face's format that continues texts.
type Generator struct {
	j         *job // of which there is a machine, and what weights need on their way
	model     *decoder.Model
	weights   *param.Replica
	positions int
}

// GeneratorOptions say which model, and where it computes.
type GeneratorOptions struct {
	Model    string // folder
	Adapters string // folder of adapters in PEFT's format, "" for none
	Device   string // auto, cpu or cuda
	Threads  int    // on the CPU; 0: all cores
}

// promptChunk is how many tokens of a prompt are read at once.
const promptChunk = 256

// OpenGenerator loads the model. Close releases it.
func OpenGenerator(ctx context.Context, o GeneratorOptions) (g *Generator, err error) {
	// Activations are those of a single short sequence.
	cfg := &config.Config{
		Model: config.Model{Path: o.Model, Attention: "auto"}, Data: config.Data{SeqLen: promptChunk},
		Parallel: config.Parallel{Strategy: "ddp", Compress: "none", Offload: "none"}, Comm: config.Comm{Engine: "auto"},
		Train: config.Train{Device: o.Device, Precision: "auto", Threads: o.Threads, MatMul: "auto", MicroBatch: 1, Recompute: "block"},
	}
	shape, err := describeAs(cfg, dtype.F32)
	if err != nil {
		return nil, errors.Join(err, shape.close())
	}
	cfg.Data.SeqLen = min(promptChunk, shape.shape.MaxPositions)
	if err := shape.close(); err != nil {
		return nil, err
	}
	a, err := describe(cfg, 1, chooseDevice)
	if err != nil {
		return nil, err
	}
	g = &Generator{j: &job{cfg: cfg, arch: a}, positions: a.shape.MaxPositions}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	g.j.onClose(a.close)
	if g.j.machine, err = openMachine(cfg, a.on, place{ranks: 1, world: 1}, g.j.onClose); err != nil {
		return nil, err
	}
	if err := g.j.startStreams(trace.NewRecorder(0)); err != nil {
		return nil, err
	}
	g.j.onClose(func() error { return errors.Join(g.j.compute.Close(), g.j.comms.Close()) })
	env := models.Env{Device: g.j.device, Stream: g.j.compute, Ops: g.j.ops, B: 1, T: cfg.Data.SeqLen, Recompute: recompute(cfg.Train)}
	g.j.env = env
	if g.model, err = a.weights.NewModel(env); err != nil {
		return nil, err
	}
	if g.weights, err = param.NewReplica(g.j.device, g.model.Params()); err != nil {
		return nil, err
	}
	return g, g.load(ctx, o.Adapters)
}

// load gives the weights their values, with those of adapters merged in.
func (g *Generator) load(ctx context.Context, adapters string) (err error) {
	set := func(p *param.Param, values []float32) error { return g.set(ctx, p, values) }
	if adapters != "" {
		f, err := lora.Open(adapters)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Fits(g.j.arch.weights.Spec()); err != nil {
			return err
		}
		set = f.Merged(set)
	}
	return g.j.arch.weights.Load(g.model.Params(), set)
}

// set rounds a parameter's values to its type. The end of ctx ends the loading.
func (g *Generator) set(ctx context.Context, p *param.Param, values []float32) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	raw := device.Of(values).Bytes()
	if p.DType != dtype.F32 {
		raw = make([]byte, len(values)*p.DType.Size())
		vec.Narrow(p.DType, raw, values)
	}
	return g.j.upload(ctx, g.weights.Weight(p), raw)
}

// About says where it computes.
func (g *Generator) About() string {
	about := fmt.Sprintf("%s, %s, on %s", g.j.arch.name, computeType(g.j.arch.on), g.j.about)
	if g.j.arch.why != "" {
		about += "; not on a GPU: " + g.j.arch.why
	}
	return about
}

// Positions is the longest text that the model takes, in tokens.
func (g *Generator) Positions() int { return g.positions }

// Vocab is the number of token ids.
func (g *Generator) Vocab() int { return g.j.arch.vocab }

// Continue continues prompt and returns the new tokens: at most o.MaxTokens, and no
// more than the model has positions for.
func (g *Generator) Continue(ctx context.Context, prompt []int32, o sample.Options) ([]int32, error) {
	room := g.positions - len(prompt)
	if room < 1 {
		return nil, fmt.Errorf("the prompt has %d tokens, and the model takes texts of %d", len(prompt), g.positions)
	}
	o.MaxTokens = min(o.MaxTokens, room)
	return sample.Tokens(ctx, sample.Generator{Generator: g.model, Env: g.j.env, Weights: g.weights}, prompt, o)
}

// Close releases the model and the device.
func (g *Generator) Close() error { return g.j.close() }
