// Package decoder is what the families of decoder-only language models share:
// the order of a pass from the embeddings over pre-norm layers to the loss and
// back, the memory of the activations, reading a text piece by piece, the names
// and first values of parameters. A family adds its embeddings and its layers.
//
// Block 0 is the embeddings, 1 to L are the layers, L+1 is the final norm and
// the head. A tied head has no parameter in L+1: its use is bracketed by block
// 0's. Letters are those of package models.
package decoder

import (
	"context"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Family is the parts in which families differ. Each call is bracketed by the
// use of its block, and enqueues on p's stream.
type Family interface {
	// Embed writes the stream before the first layer, x[N,C].
	Embed(p layer.Pass, x, tokens tensor.Tensor, s Span)
	// EmbedBackward hands out the gradients of block 0 from dx[N,C].
	EmbedBackward(p layer.Pass, dx, tokens tensor.Tensor, s Span)
	// Layer reads a.X, the stream before layer i, and writes a.After, the one
	// behind it.
	Layer(p layer.Pass, i int, a Activations)
	// LayerBackward turns dx[N,C], the gradient of the stream behind layer i,
	// into that of the stream before it. a is what Layer left. It may end above the
	// lowest weight that is trained: see layer.Pass.Below.
	LayerBackward(p layer.Pass, i int, a Activations, g Gradients, dx tensor.Tensor)
}

// Span is the tokens of one pass: B sequences of T positions, the first of which
// is Pos. Only a span that reads the cache begins behind position 0.
type Span struct{ B, T, Pos int }

// Spec describes one model, before it is built.
type Spec struct {
	Name string // of the family, in errors
	Shape
	Family Family
	Norm   layer.Norm // behind the last layer
	// Residual is the endings of the names of those weights that write into
	// the residual stream.
	Residual []string
	params   []*param.Param
	head     *param.Param
	tables   []table
	adapter  Adapter // what Adapt has put on linear layers, or nil
}

// table is constant memory of a family's own.
type table struct {
	name  string
	dtype dtype.DType
	shape []int
	to    *tensor.Tensor
	fill  func(host tensor.Tensor)
}

// Shape is the sizes that the activations follow from.
type Shape struct {
	DType                   dtype.DType // of weights and activations
	Vocab, Hidden, Layers   int
	Heads, KVHeads, HeadDim int
	FFN                     int
	MaxPositions            int  // the longest text
	LayerNorm               bool // norms keep a mean, and need scratch
	Gated                   bool // the feed-forward network has a gate
	QKNorm                  bool // heads of queries and of keys are normalised
	Tied                    bool // the head is the embedding
}

// last is the block of the final norm, and of the head unless it is tied.
func (s Shape) last() int { return 1 + s.Layers }

// Model computes on the stream of its environment. It is for one goroutine.
type Model struct {
	spec   *Spec
	env    models.Env
	head   layer.Head
	layout *layout
	mem    models.Memory
	// kept is the batch whose activations Backward may use; B is 0 when there
	// is none. loss is where its losses belong.
	kept  models.Batch
	loss  tensor.Tensor
	cache cache
}

var (
	_ models.Model     = (*Model)(nil)
	_ models.Generator = (*Model)(nil)
)

// New builds the model that spec describes and allocates its memory: the tables,
// and activations for the environment's largest micro-batch. A Spec makes one
// model.
func New(spec *Spec, env models.Env) (*Model, error) {
	if err := env.Check(); err != nil {
		return nil, err
	}
	m := &Model{spec: spec, env: env}
	m.head, m.layout = spec.plan(env.B, env.T, env.Device.Kind(), env.Recompute)
	var err error
	if m.mem, err = m.layout.plan.Alloc(env.Device); err != nil {
		return nil, err
	}
	if spec.adapter != nil {
		spec.adapter.Bind(m.mem)
	}
	for i, t := range spec.tables {
		*t.to = m.mem.Tensor(m.layout.tables[i], 0, t.shape...)
		if err := m.fill(t); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", spec.Name, t.name, err)
		}
	}
	return m, nil
}

// fill computes a table on the host and copies it to its place.
func (m *Model) fill(t table) error {
	buf, err := m.env.Device.AllocHost(t.to.Buf.Len())
	if err != nil {
		return err
	}
	t.fill(tensor.New(buf, t.dtype, t.shape...))
	m.env.Stream.Copy(t.to.Buf, buf)
	if err := m.drain(); err != nil {
		return err // the stream may still read buf
	}
	return m.env.Device.Free(buf)
}

// drainTimeout bounds the wait for a stream before memory that it uses is freed.
const drainTimeout = time.Minute

func (m *Model) drain() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), drainTimeout,
		fmt.Errorf("the compute stream is still busy after %v", drainTimeout))
	defer cancel()
	return m.env.Stream.Synchronize(ctx)
}

// Params lists the parameters in the order in which forward first uses them.
func (m *Model) Params() []*param.Param { return m.spec.params }

// Bytes is the memory that the model holds beside its parameters, the cache of
// keys and values included.
func (m *Model) Bytes() int64 { return m.layout.plan.Bytes() + m.cache.bytes() }

func (m *Model) pass(w param.Weights, g param.GradSink) layer.Pass {
	p := layer.Pass{Ops: m.env.Ops, Stream: m.env.Stream, Weights: w, Grads: g}
	if m.spec.adapter != nil {
		p.Adapter = m.spec.adapter
	}
	return p
}

// random is what is random of a training pass over b.
func random(b models.Batch) *layer.Random {
	return &layer.Random{Step: uint64(b.Step), Row: uint64(b.Sample) * uint64(b.T)}
}
