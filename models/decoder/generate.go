package decoder

import (
	"fmt"
	"slices"

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
	if err := m.resetCache(maxLen); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Vocab is the length of Next's logits.
func (m *Model) Vocab() int { return m.spec.Vocab }

// Next reads further tokens, in pieces of what the micro-batch holds, and writes
// the logits [V] f32 behind the last.
func (m *Model) Next(w param.Weights, tokens []int32, logits tensor.Tensor) error {
	m.kept = models.Batch{}
	c := &m.cache
	if len(tokens) == 0 || c.used+len(tokens) > c.room {
		return fmt.Errorf("%s: %d tokens behind the %d read, with room for %d in all (Reset makes room)",
			m.spec.Name, len(tokens), c.used, c.room)
	}
	p := m.pass(w, nil)
	var last tensor.Tensor
	c.staging = slices.Clone(tokens) // lives until the stream has passed the copies: see Generator
	for piece := range slices.Chunk(c.staging, m.env.B*m.env.T) {
		ids := m.mem.Tensor(m.layout.ids, 0, len(piece))
		p.Stream.Copy(ids.Buf, models.Ints(piece).Buf)
		x := m.body(p, ids, tensor.Tensor{}, Span{B: 1, T: len(piece), Pos: c.used}, c)
		last = x.Rows(len(piece)-1, len(piece))
		c.used += len(piece)
	}
	m.finish(p, last, func(final tensor.Tensor) {
		row := m.head.Row(m.mem)
		m.head.Logits(p, row, final)
		p.Copy(p.Stream, logits, row.Reshape(m.spec.Vocab))
	})
	return nil
}
