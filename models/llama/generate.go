package llama

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// cache is the keys and values of the text read so far, for one sequence.
type cache struct {
	keys, values tensor.Tensor // [L, room, K*D]
	room, used   int           // tokens
}

// upTo sees the first n keys and values of layer i, [n, K*D].
func (c *cache) upTo(i, n int) (keys, values tensor.Tensor) {
	see := func(t tensor.Tensor) tensor.Tensor {
		return t.Rows(i, i+1).Reshape(c.room, t.Shape[2]).Rows(0, n)
	}
	return see(c.keys), see(c.values)
}

func (c *cache) bytes() int64 { return int64(c.keys.Buf.Len() + c.values.Buf.Len()) }

// drainTimeout bounds the wait for a stream before memory that it reads is freed.
const drainTimeout = time.Minute

// Reset forgets the text and makes room for maxLen tokens.
func (m *Model) Reset(maxLen int) error {
	if maxLen < 1 || maxLen > m.cfg.MaxPositions {
		return fmt.Errorf("llama: a text of %d tokens; the model takes 1 to %d", maxLen, m.cfg.MaxPositions)
	}
	m.cache.used = 0
	if maxLen <= m.cache.room {
		return nil
	}
	if err := m.dropCache(); err != nil {
		return err
	}
	shape := []int{m.cfg.Layers, maxLen, m.cfg.KVHeads * m.cfg.HeadDim}
	keys, err := tensor.Alloc(m.env.Device, dtype.F32, shape...)
	if err != nil {
		return fmt.Errorf("llama: cache of keys: %w", err)
	}
	values, err := tensor.Alloc(m.env.Device, dtype.F32, shape...)
	if err != nil {
		m.env.Device.Free(keys.Buf)
		return fmt.Errorf("llama: cache of values: %w", err)
	}
	m.cache = cache{keys: keys, values: values, room: maxLen}
	return nil
}

func (m *Model) dropCache() error {
	if m.cache.room == 0 {
		return nil
	}
	old := m.cache
	m.cache = cache{}
	ctx, cancel := context.WithTimeoutCause(context.Background(), drainTimeout,
		fmt.Errorf("not drained within %v, the old cache is still read", drainTimeout))
	defer cancel()
	if err := m.env.Stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("llama: replacing the cache: %w", err)
	}
	for _, t := range []tensor.Tensor{old.keys, old.values} {
		if err := m.env.Device.Free(t.Buf); err != nil {
			return fmt.Errorf("llama: freeing the cache: %w", err)
		}
	}
	return nil
}

// Vocab is the length of Next's logits.
func (m *Model) Vocab() int { return m.cfg.Vocab }

// Next reads further tokens, at most as many at once as the environment's
// micro-batch holds, and writes the logits [V] behind the last.
func (m *Model) Next(w param.Weights, tokens []int32, logits tensor.Tensor) error {
	if len(tokens) == 0 || m.cache.used+len(tokens) > m.cache.room {
		return fmt.Errorf("llama: %d tokens behind %d, with room for %d", len(tokens), m.cache.used, m.cache.room)
	}
	m.kept = models.Batch{}
	p := m.pass(w, nil)
	var x tensor.Tensor
	for piece := range slices.Chunk(slices.Clone(tokens), m.env.B*m.env.T) {
		s := span{b: 1, t: len(piece), pos: m.cache.used, cache: &m.cache}
		x = m.body(p, models.Ints(piece), s).Rows(len(piece)-1, len(piece))
		m.cache.used += len(piece)
	}
	final, rstd := m.finalNorm(1)
	p.Use(m.last())
	m.layers.norm.Forward(p, final, rstd, x)
	m.turn(p, m.last(), m.head.Weight.Block)
	m.head.Logits(p, logits.Reshape(1, m.cfg.Vocab), final)
	p.Done(m.head.Weight.Block)
	return nil
}
