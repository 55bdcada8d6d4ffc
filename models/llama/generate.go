package llama

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Reset forgets the text and makes room for maxLen tokens.
func (m *Model) Reset(maxLen int) error {
	if maxLen < 1 || maxLen > m.cfg.MaxPositions {
		return fmt.Errorf("llama: a text of %d tokens; the model takes 1 to %d", maxLen, m.cfg.MaxPositions)
	}
	if err := m.cache.Reset(m.env, m.cfg.Layers, maxLen, m.cfg.KVHeads*m.cfg.HeadDim); err != nil {
		return fmt.Errorf("llama: %w", err)
	}
	return nil
}

// Vocab is the length of Next's logits.
func (m *Model) Vocab() int { return m.cfg.Vocab }

// Next reads further tokens, in pieces of what the micro-batch holds, and writes
// the logits [V] behind the last.
func (m *Model) Next(w param.Weights, tokens []int32, logits tensor.Tensor) error {
	m.kept = models.Batch{}
	p := m.pass(w, nil)
	x, err := m.cache.Read(tokens, m.env.B*m.env.T, func(ids tensor.Tensor, pos int) tensor.Tensor {
		return m.body(p, ids, span{b: 1, t: ids.Shape[0], pos: pos, cache: &m.cache})
	})
	if err != nil {
		return fmt.Errorf("llama: %w", err)
	}
	final, rstd := m.finalNorm(1)
	p.Use(m.last())
	m.layers.norm.Forward(p, final, rstd, x)
	p.Turn(m.last(), m.head.Weight.Block)
	m.head.Logits(p, logits.Reshape(1, m.cfg.Vocab), final)
	p.Done(m.head.Weight.Block)
	return nil
}
