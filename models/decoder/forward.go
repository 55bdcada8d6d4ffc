package decoder

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Forward runs b's tokens up to the final norm. Without train it adds the sum of
// the losses to loss[1] f64; with train Backward does.
func (m *Model) Forward(w param.Weights, b models.Batch, loss tensor.Tensor, train bool) {
	m.env.CheckBatch(b)
	if b.T > m.spec.MaxPositions {
		panic(fmt.Sprintf("%s: %d positions, the model has %d", m.spec.Name, b.T, m.spec.MaxPositions))
	}
	p := m.pass(w, nil)
	if train {
		p.Random = random(b)
	}
	x := m.body(p, b.Tokens, b.Docs, Span{B: b.B, T: b.T}, nil)
	m.kept = models.Batch{}
	if train {
		m.kept, m.loss = b, loss
		m.normalise(p, x)
		p.Done(m.spec.last())
		return
	}
	m.finish(p, x, func(final tensor.Tensor) { m.head.Loss(p, m.mem, loss, final, b.Targets) })
}

// body runs the embeddings and the layers, and returns the stream behind the
// last, [N,C]. A cache that is given gets the keys and values.
func (m *Model) body(p layer.Pass, tokens, docs tensor.Tensor, s Span, keep *cache) tensor.Tensor {
	n := s.B * s.T
	x := m.see(m.layout.stream, 0, n, m.spec.Hidden)
	p.Use(0)
	m.spec.Family.Embed(p, x, tokens.Reshape(n), s)
	p.Done(0)
	for i := range m.spec.Layers {
		a := m.activations(i, s, docs)
		if keep != nil {
			a.keys, a.values = keep.layer(i)
		}
		p.Use(1 + i)
		m.spec.Family.Layer(p, i, a)
		p.Done(1 + i)
		x = a.After
	}
	return x
}

// normalise begins the use of the last block, and returns the final norm of x[N,C].
func (m *Model) normalise(p layer.Pass, x tensor.Tensor) tensor.Tensor {
	final, stats := m.final(x.Shape[0])
	p.Use(m.spec.last())
	m.spec.Norm.Forward(p, final, stats, x)
	return final
}

// finish normalises x[N,C] and lets head compute with the result.
func (m *Model) finish(p layer.Pass, x tensor.Tensor, head func(final tensor.Tensor)) {
	final := m.normalise(p, x)
	turn(p, m.spec.last(), m.head.Weight.Block)
	head(final)
	p.Done(m.head.Weight.Block)
}

// turn goes from one block to another, which may be the same. A tied head is
// bracketed by the embedding's block, beside the final norm's: at most one block
// is open at any time.
func turn(p layer.Pass, from, to int) {
	if from != to {
		p.Done(from)
		p.Use(to)
	}
}
