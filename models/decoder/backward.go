package decoder

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
)

// Backward hands out scale times the gradient of the sum of the last Forward's
// losses, from the head down to the lowest block with a trainable parameter. It
// uses up the activations: one Backward for a Forward.
func (m *Model) Backward(w param.Weights, g param.GradSink, scale float32) {
	if m.kept.B == 0 {
		panic(m.spec.Name + ": Backward without a Forward that kept its activations")
	}
	b, s, n := m.kept, Span{B: m.kept.B, T: m.kept.T}, m.kept.B*m.kept.T
	m.kept = models.Batch{}
	lowest, any := firstTrainable(m.spec.params)
	if !any {
		return
	}
	p := m.pass(w, g)
	x, dx := m.see(m.layout.stream, m.spec.Layers, n, m.spec.Hidden), m.see(m.layout.dstream, 0, n, m.spec.Hidden)
	final, stats := m.final(n)

	p.Use(m.head.Weight.Block)
	m.head.Backward(p, m.mem, dx, final, b.Targets, scale)
	turn(p, m.head.Weight.Block, m.spec.last())
	m.spec.Norm.Backward(p, dx, dx, x, stats, false)
	p.Done(m.spec.last())

	for i := m.spec.Layers - 1; i >= max(0, lowest-1); i-- {
		p.Use(1 + i)
		m.spec.Family.LayerBackward(p, i, m.activations(i, s), m.gradients(n), dx)
		p.Done(1 + i)
	}
	if lowest == 0 {
		p.Use(0)
		m.spec.Family.EmbedBackward(p, dx, b.Tokens.Reshape(n), s)
		p.Done(0)
	}
}

// firstTrainable is the lowest block with a parameter that is not frozen, and
// false when there is none: a backward pass need not go below it.
func firstTrainable(params []*param.Param) (block int, any bool) {
	for _, p := range params {
		if !p.Frozen && (!any || p.Block < block) {
			block, any = p.Block, true
		}
	}
	return block, any
}
