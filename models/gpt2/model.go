package gpt2

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Model computes on the stream of its environment. It is for one goroutine.
type Model struct {
	cfg    Config
	env    models.Env
	layers layers
	head   layer.Head
	layout *layout
	mem    models.Memory
	ids    tensor.Tensor // [P] i32: 0, 1, 2, ...
	// kept is the batch whose activations Backward may use; B is 0 when there
	// is none.
	kept  models.Batch
	cache layer.Cache
}

var (
	_ models.Model     = (*Model)(nil)
	_ models.Generator = (*Model)(nil)
)

// New builds a model of shape cfg and allocates its memory: activations for
// the environment's largest micro-batch.
func New(cfg Config, env models.Env) (*Model, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if err := env.Check(); err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, env: env, layers: newLayers(cfg)}
	m.head = layer.NewHead(m.layers.head, cfg.Tied, env.B*env.T)
	m.layout = newLayout(cfg, &m.head, env.B, env.T)
	if m.mem, err = m.layout.plan.Alloc(env.Device); err != nil {
		return nil, err
	}
	m.ids = m.mem.Tensor(m.layout.ids, 0, cfg.MaxPositions)
	for i := range m.ids.I32() {
		m.ids.I32()[i] = int32(i)
	}
	return m, nil
}

// Config is the model's shape, FFN filled in.
func (m *Model) Config() Config { return m.cfg }

// Params lists the parameters in the order in which forward first uses them.
func (m *Model) Params() []*param.Param { return m.layers.params }

// Bytes is the memory that the model holds beside its parameters, the cache of
// keys and values included.
func (m *Model) Bytes() int64 { return m.layout.plan.Bytes() + m.cache.Bytes() }

// last is the block of the final norm, and of the head unless it is tied.
func (m *Model) last() int { return 1 + m.cfg.Layers }

func (m *Model) pass(w param.Weights, g param.GradSink) layer.Pass {
	return layer.Pass{Ops: m.env.Ops, Stream: m.env.Stream, Weights: w, Grads: g}
}
