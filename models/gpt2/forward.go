package gpt2

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// span is what a forward pass computes: b sequences of t positions, the first of
// which is pos. Only a span that reads the cache begins behind position 0.
type span struct {
	b, t, pos int
	cache     *layer.Cache
}

// Forward adds the sum of b's losses to loss[1] f64. Without train it keeps
// nothing for Backward.
func (m *Model) Forward(w param.Weights, b models.Batch, loss tensor.Tensor, train bool) {
	m.env.CheckBatch(b)
	if b.T > m.cfg.MaxPositions {
		panic(fmt.Sprintf("gpt2: %d positions, the model has %d", b.T, m.cfg.MaxPositions))
	}
	p := m.pass(w, nil)
	x := m.body(p, b.Tokens, span{b: b.B, t: b.T})
	final, mean, rstd := m.finalNorm(b.B * b.T)

	p.Use(m.last())
	m.layers.norm.Forward(p, final, mean, rstd, x)
	p.Turn(m.last(), m.head.Weight.Block)
	m.head.Forward(p, m.mem, loss, final, b.Targets)
	p.Done(m.head.Weight.Block)

	m.kept = models.Batch{}
	if train {
		m.kept = b
	}
}

func (m *Model) finalNorm(n int) (y, mean, rstd tensor.Tensor) {
	see, r := m.mem.Tensor, m.layout
	return see(r.final, 0, n, m.cfg.Hidden), see(r.finalMean, 0, n), see(r.finalRstd, 0, n)
}

// sequences splits x[N,...] into its b sequences and pairs each with the ids of
// the positions from pos on.
func (m *Model) sequences(x tensor.Tensor, b, pos int) (parts, ids []tensor.Tensor) {
	t := x.Shape[0] / b
	for i := range b {
		parts = append(parts, x.Rows(i*t, (i+1)*t))
		ids = append(ids, m.ids.Rows(pos, pos+t))
	}
	return parts, ids
}

// body runs the embeddings and the layers, and returns the stream behind the
// last, [N,C].
func (m *Model) body(p layer.Pass, tokens tensor.Tensor, s span) tensor.Tensor {
	x := m.mem.Tensor(m.layout.stream, 0, s.b*s.t, m.cfg.Hidden)
	p.Use(0)
	m.layers.tokens.Forward(p, x, tokens.Reshape(s.b*s.t), false)
	rows, ids := m.sequences(x, s.b, s.pos)
	for i := range rows {
		m.layers.positions.Forward(p, rows[i], ids[i], true)
	}
	p.Done(0)
	for i := range m.layers.blocks {
		p.Use(1 + i)
		x = m.forwardLayer(p, i, s)
		p.Done(1 + i)
	}
	return x
}

// forwardLayer reads the stream before layer i and returns the one behind it.
func (m *Model) forwardLayer(p layer.Pass, i int, s span) tensor.Tensor {
	c, l, a := m.cfg, m.layers.blocks[i], m.at(i, s.b, s.t)
	branch := m.mem.Tensor(m.layout.branch, 0, s.b*s.t, c.Hidden)
	keys, values := a.k, a.v
	if s.cache != nil {
		keys, values = s.cache.UpTo(i, s.pos+s.t)
		a.k, a.v = keys.Rows(s.pos, s.pos+s.t), values.Rows(s.pos, s.pos+s.t)
	}

	l.norm1.Forward(p, a.norm1, a.mean1, a.rstd1, a.x)
	l.qkv.Forward(p, []tensor.Tensor{a.q, a.k, a.v}, a.norm1)
	p.Attention(p.Stream, m.heads(a.o, s.b), a.lse, m.heads(a.q, s.b), m.heads(keys, s.b), m.heads(values, s.b))
	l.out.Forward(p, branch, a.o)
	p.Add(p.Stream, a.mid, a.x, branch)

	l.norm2.Forward(p, a.norm2, a.mean2, a.rstd2, a.mid)
	l.up.Forward(p, a.up, a.norm2)
	p.GELU(p.Stream, a.act, a.up)
	l.down.Forward(p, branch, a.act)
	p.Add(p.Stream, a.after, a.mid, branch)
	return a.after
}

// heads sees x[N,C] as [B, T, H, D].
func (m *Model) heads(x tensor.Tensor, b int) tensor.Tensor {
	return x.Reshape(b, x.Shape[0]/b, m.cfg.Heads, m.cfg.Hidden/m.cfg.Heads)
}
