package decoder

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Activations is the memory of one layer: what its forward pass leaves for its
// backward pass, which may overwrite Gate, Up and Act.
type Activations struct {
	Span
	X, Mid, After  tensor.Tensor // [N,C] the stream before attention, before the feed-forward, behind it
	Norm1, Norm2   tensor.Tensor // [N,C]
	Stats1, Stats2 layer.Stats
	Q, O           tensor.Tensor // [N,H*D]
	K, V           tensor.Tensor // [N,K*D]
	// Keys and Values are K and V, or where there is a cache those of the whole
	// text, of which K and V are the end.
	Keys, Values  tensor.Tensor
	LSE           tensor.Tensor // [B,H,T]
	Gate, Up, Act tensor.Tensor // [N,F]; no Gate unless Shape.Gated
	Branch        tensor.Tensor // [N,C] scratch of forward: what is added to the stream
	headDim       int
}

// Gradients is scratch of a layer's backward pass. Act shares its place with
// those of attention: the feed-forward must be done before them.
type Gradients struct {
	Norm tensor.Tensor // [N,C]
	Act  tensor.Tensor // [N,F]
	O, Q tensor.Tensor // [N,H*D]
	K, V tensor.Tensor // [N,K*D]
}

// Heads sees x[N, heads*D] as [B, T, heads, D].
func (a Activations) Heads(x tensor.Tensor) tensor.Tensor {
	return x.Reshape(a.B, x.Shape[0]/a.B, x.Shape[1]/a.headDim, a.headDim)
}

// Attend writes O and LSE from Q, Keys and Values.
func (a Activations) Attend(p layer.Pass) {
	p.Attention(p.Stream, a.Heads(a.O), a.LSE, a.Heads(a.Q), a.Heads(a.Keys), a.Heads(a.Values))
}

// AttendBackward writes g.Q, g.K and g.V from g.O.
func (a Activations) AttendBackward(p layer.Pass, g Gradients) {
	p.AttentionBackward(p.Stream, a.Heads(g.Q), a.Heads(g.K), a.Heads(g.V), a.Heads(g.O),
		a.Heads(a.O), a.LSE, a.Heads(a.Q), a.Heads(a.K), a.Heads(a.V))
}

// layout is a model's plan and the regions in it; for the shapes see Activations
// and Gradients.
type layout struct {
	plan   models.Plan
	tables []models.Region

	// Kept for the backward pass, a slot a layer; stream has one more, for
	// the last layer's output.
	stream, mid, norm1, norm2  models.Region
	mean1, rstd1, mean2, rstd2 models.Region
	q, k, v, o, lse            models.Region
	gate, up, act              models.Region

	final, finalMean, finalRstd models.Region
	branch                      models.Region
	dstream, dnorm, dact        models.Region
	dout, dq, dk, dv            models.Region
	unused                      models.Region // a norm's gradient that nobody wants
}

// plan lays out the memory for batches of b sequences of t positions.
func (s *Spec) plan(b, t int) (layer.Head, *layout) {
	n := b * t
	head := layer.NewHead(s.head, s.Tied, n)
	m := &layout{}
	p := &m.plan
	for _, t := range s.tables {
		m.tables = append(m.tables, p.Add(t.name, t.dtype, 1, tensor.Numel(t.shape)))
	}
	add := func(name string, slots, width int) models.Region { return p.Add(name, dtype.F32, slots, n*width) }
	stats := func(name string, slots int) (mean, rstd models.Region) {
		if s.LayerNorm {
			mean = add(name+".mean", slots, 1)
		}
		return mean, add(name+".rstd", slots, 1)
	}
	l, q, kv := s.Layers, s.Heads*s.HeadDim, s.KVHeads*s.HeadDim

	m.stream = add("stream", l+1, s.Hidden)
	m.norm1 = add("norm1", l, s.Hidden)
	m.mean1, m.rstd1 = stats("norm1", l)
	m.q, m.k = add("attention.q", l, q), add("attention.k", l, kv)
	m.v, m.o = add("attention.v", l, kv), add("attention.o", l, q)
	m.lse = add("attention.lse", l, s.Heads)
	m.mid = add("stream.mid", l, s.Hidden)
	m.norm2 = add("norm2", l, s.Hidden)
	m.mean2, m.rstd2 = stats("norm2", l)
	if s.Gated {
		m.gate = add("mlp.gate", l, s.FFN)
	}
	m.up, m.act = add("mlp.up", l, s.FFN), add("mlp.act", l, s.FFN)
	m.final = add("norm", 1, s.Hidden)
	m.finalMean, m.finalRstd = stats("norm", 1)
	head.PlanLosses(p, n)
	m.dstream = add("backward.stream", 1, s.Hidden)
	if s.LayerNorm {
		m.unused = p.Add("backward.unused", dtype.F32, 1, s.Hidden)
	}
	p.Overlay(
		func() { m.branch = add("forward.branch", 1, s.Hidden) },
		func() { head.PlanLogits(p) },
		func() {
			m.dnorm = add("backward.norm", 1, s.Hidden)
			p.Overlay(
				func() { m.dact = add("backward.mlp.act", 1, s.FFN) },
				func() {
					m.dout, m.dq = add("backward.attention.o", 1, q), add("backward.attention.q", 1, q)
					m.dk, m.dv = add("backward.attention.k", 1, kv), add("backward.attention.v", 1, kv)
				},
			)
		},
	)
	return head, m
}

// Plan is what the model holds beside its parameters, for micro-batches of b
// sequences of t positions.
func (s *Spec) Plan(b, t int) (*models.Plan, error) {
	if t > s.MaxPositions {
		return nil, fmt.Errorf("%s: sequences of %d tokens, the model has %d positions", s.Name, t, s.MaxPositions)
	}
	_, m := s.plan(b, t)
	return &m.plan, nil
}

// see is slot i of r as [n, width].
func (m *Model) see(r models.Region, i, n, width int) tensor.Tensor {
	return m.mem.Tensor(r, i, n, width)
}

func (m *Model) stats(mean, rstd models.Region, i, n int) layer.Stats {
	s := layer.Stats{Rstd: m.mem.Tensor(rstd, i, n)}
	if m.spec.LayerNorm {
		s.Mean, s.Unused = m.mem.Tensor(mean, i, n), m.mem.Tensor(m.layout.unused, 0, m.spec.Hidden)
	}
	return s
}

// final is the output of the final norm for n rows, and what it keeps.
func (m *Model) final(n int) (tensor.Tensor, layer.Stats) {
	return m.see(m.layout.final, 0, n, m.spec.Hidden), m.stats(m.layout.finalMean, m.layout.finalRstd, 0, n)
}

// activations sees the slots of layer i for the tokens of s.
func (m *Model) activations(i int, s Span) Activations {
	c, r, n := m.spec.Shape, m.layout, s.B*s.T
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	a := Activations{
		Span: s, headDim: c.HeadDim,
		X: m.see(r.stream, i, n, c.Hidden), Mid: m.see(r.mid, i, n, c.Hidden), After: m.see(r.stream, i+1, n, c.Hidden),
		Norm1: m.see(r.norm1, i, n, c.Hidden), Stats1: m.stats(r.mean1, r.rstd1, i, n),
		Norm2: m.see(r.norm2, i, n, c.Hidden), Stats2: m.stats(r.mean2, r.rstd2, i, n),
		Q: m.see(r.q, i, n, q), K: m.see(r.k, i, n, kv), V: m.see(r.v, i, n, kv), O: m.see(r.o, i, n, q),
		LSE: m.mem.Tensor(r.lse, i, s.B, c.Heads, s.T),
		Up:  m.see(r.up, i, n, c.FFN), Act: m.see(r.act, i, n, c.FFN),
		Branch: m.see(r.branch, 0, n, c.Hidden),
	}
	if c.Gated {
		a.Gate = m.see(r.gate, i, n, c.FFN)
	}
	a.Keys, a.Values = a.K, a.V
	return a
}

func (m *Model) gradients(n int) Gradients {
	c, r := m.spec.Shape, m.layout
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return Gradients{
		Norm: m.see(r.dnorm, 0, n, c.Hidden), Act: m.see(r.dact, 0, n, c.FFN),
		O: m.see(r.dout, 0, n, q), Q: m.see(r.dq, 0, n, q), K: m.see(r.dk, 0, n, kv), V: m.see(r.dv, 0, n, kv),
	}
}
