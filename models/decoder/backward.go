package decoder

import (
	"slices"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Backward adds the last Forward's losses to its loss, and hands out scale times
// the gradient of their sum, from the head down to the lowest block with a
// trainable parameter. It uses up the activations: one Backward for a Forward.
func (m *Model) Backward(w param.Weights, g param.GradSink, scale float32) {
	if m.kept.B == 0 {
		panic(m.spec.Name + ": Backward without a Forward that kept its activations")
	}
	b, s, n := m.kept, Span{B: m.kept.B, T: m.kept.T}, m.kept.B*m.kept.T
	m.kept = models.Batch{}
	p := m.pass(w, g)
	p.Random = random(b)
	first := firstTrainable(m.spec.params)
	if first < 0 {
		final, _ := m.final(n)
		p.Use(m.head.Weight.Block)
		m.head.Loss(p, m.mem, m.loss, final, b.Targets)
		p.Done(m.head.Weight.Block)
		return
	}
	lowest := m.spec.params[first].Block
	p.Below = func(q *param.Param) bool { return slices.Index(m.spec.params, q) > first }
	x, dx := m.see(m.layout.stream, m.spec.Layers, n, m.spec.Hidden), m.see(m.layout.dstream, 0, n, m.spec.Hidden)
	final, stats := m.final(n)

	p.Use(m.head.Weight.Block)
	m.head.Backward(p, m.mem, m.loss, dx, final, b.Targets, scale)
	turn(p, m.head.Weight.Block, m.spec.last())
	m.spec.Norm.Backward(p, dx, dx, x, stats, false)
	p.Done(m.spec.last())

	for i := m.spec.Layers - 1; i >= max(0, lowest-1); i-- {
		a := m.activations(i, s, b.Docs)
		p.Use(1 + i)
		switch m.env.Recompute {
		case models.RecomputeBlocks:
			again := a
			again.After = tensor.Tensor{}
			m.spec.Family.Layer(p, i, again)
		case models.RecomputeNorms:
			a.Lost = true
		}
		m.spec.Family.LayerBackward(p, i, a, m.gradients(n), dx)
		p.Done(1 + i)
	}
	if lowest == 0 {
		p.Use(0)
		m.spec.Family.EmbedBackward(p, dx, b.Tokens.Reshape(n), s)
		p.Done(0)
	}
}

// firstTrainable is the place of the first parameter that is not frozen, -1 when there
// is none: a backward pass need not go below it.
func firstTrainable(params []*param.Param) int {
	return slices.IndexFunc(params, func(p *param.Param) bool { return !p.Frozen })
}
