package decoder

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Reset forgets the text and makes room for maxLen tokens.
func (m *Model) Reset(maxLen int) error {
	s := m.spec
	if maxLen < 1 || maxLen > s.MaxPositions {
		return fmt.Errorf("%s: a text of %d tokens; the model takes 1 to %d", s.Name, maxLen, s.MaxPositions)
	}
	if err := m.cache.reset(m.env, s.Layers, maxLen, s.KVHeads*s.HeadDim); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Vocab is the length of Next's logits.
func (m *Model) Vocab() int { return m.spec.Vocab }

// Next reads further tokens, in pieces of what the micro-batch holds, and writes
// the logits [V] behind the last.
func (m *Model) Next(w param.Weights, tokens []int32, logits tensor.Tensor) error {
	m.kept = models.Batch{}
	p := m.pass(w, nil)
	x, err := m.cache.read(tokens, m.env.B*m.env.T, func(ids tensor.Tensor, pos int) tensor.Tensor {
		return m.body(p, ids, Span{B: 1, T: ids.Shape[0], Pos: pos}, &m.cache)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", m.spec.Name, err)
	}
	m.finish(p, x, func(final tensor.Tensor) { m.head.Logits(p, logits.Reshape(1, m.spec.Vocab), final) })
	return nil
}
