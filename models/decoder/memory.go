package decoder

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Activations is the memory of one layer: what its forward pass leaves for its
// backward pass, which may overwrite Up and Act.
type Activations struct {
	Span
	X, Mid, After  tensor.Tensor // [N,C] the stream before attention, before the feed-forward, behind it
	Norm1, Norm2   tensor.Tensor // [N,C]
	Stats1, Stats2 layer.Stats
	QKV            tensor.Tensor // [N,(H+2K)*D]
	Raw            tensor.Tensor // [N,(H+2K)*D], QKV before its heads are normalised, or none
	O              tensor.Tensor // [N,H*D]
	LSE            tensor.Tensor // [B,H,T]
	Up             tensor.Tensor // [N,F], or [N,2F] with a gate on the left
	Act            tensor.Tensor // [N,F]
	// Lost says to the backward pass that Norm1, Norm2 and Act, and QKV where there
	// is a Raw, hold another layer's values and must be computed again. After is none where the forward
	// pass is repeated for the backward pass, which does not need it.
	Lost bool

	docs         tensor.Tensor // [B*T] or none
	keys, values tensor.Tensor // [P,K*D] of the text that this continues, or none
	headDim      int
}

// Gradients is scratch of a layer's backward pass. Act shares its place with
// those of attention: the feed-forward must be done before them.
type Gradients struct {
	Norm tensor.Tensor // [N,C]
	Act  tensor.Tensor // [N,F]
	O    tensor.Tensor // [N,H*D]
	QKV  tensor.Tensor // [N,(H+2K)*D]
}

// Heads sees x[N, heads*D] as [B, T, heads, D].
func (a Activations) Heads(x tensor.Tensor) tensor.Tensor {
	return x.Reshape(a.B, x.Shape[0]/a.B, x.Shape[1]/a.headDim, a.headDim)
}

// Rows sees x[N, heads*D] as [N, heads, D].
func (a Activations) Rows(x tensor.Tensor) tensor.Tensor {
	return x.Reshape(x.Shape[0], x.Shape[1]/a.headDim, a.headDim)
}

// Attend writes O, and LSE for the backward pass, from QKV.
func (a Activations) Attend(p layer.Pass) {
	if a.keys.None() {
		p.Attention(p.Stream, a.Heads(a.O), a.LSE, a.Heads(a.QKV), a.documents())
		return
	}
	p.AttentionNext(p.Stream, a.Heads(a.O), a.Rows(a.keys), a.Rows(a.values), a.Heads(a.QKV), a.Pos)
}

// AttendBackward writes g.QKV from g.O.
func (a Activations) AttendBackward(p layer.Pass, g Gradients) {
	p.AttentionBackward(p.Stream, a.Heads(g.QKV), a.Heads(g.O), a.Heads(a.O), a.LSE, a.Heads(a.QKV), a.documents())
}

func (a Activations) documents() tensor.Tensor {
	if a.docs.None() {
		return a.docs
	}
	return a.docs.Reshape(a.B, a.T)
}

// layout is a model's plan and the regions in it; for the shapes see Activations
// and Gradients.
type layout struct {
	plan   models.Plan
	tables []models.Region
	ids    models.Region // the tokens that a generator reads

	// Kept for the backward pass, a slot a layer, or one for all where they are
	// computed again; stream has one more, for the last layer's output.
	stream, mid, norm1, norm2  models.Region
	mean1, rstd1, mean2, rstd2 models.Region
	raw, qkv, o, lse           models.Region // raw is used where heads are normalised
	up, act                    models.Region

	final, finalMean, finalRstd models.Region
	dstream, dnorm, dact        models.Region
	dout, dqkv                  models.Region
	unused                      models.Region // a norm's gradient that nobody wants
}

// plan lays out the memory for batches of b sequences of t positions.
func (s *Spec) plan(b, t int, on device.Kind, again models.Recompute) (layer.Head, *layout) {
	n := b * t
	head := layer.NewHead(s.head, s.Tied, n, on)
	m := &layout{}
	p := &m.plan
	for _, t := range s.tables {
		m.tables = append(m.tables, p.Add(t.name, t.dtype, 1, tensor.Numel(t.shape)))
	}
	m.ids = p.Add("ids", dtype.I32, 1, n)
	add := func(name string, slots, width int) models.Region { return p.Add(name, s.DType, slots, n*width) }
	single := func(name string, slots, width int) models.Region { return p.Add(name, dtype.F32, slots, n*width) }
	stats := func(name string, slots int) (mean, rstd models.Region) {
		if s.LayerNorm {
			mean = single(name+".mean", slots, 1)
		}
		return mean, single(name+".rstd", slots, 1)
	}
	heavy, cheap := s.Layers, s.Layers
	if again >= models.RecomputeNorms {
		cheap = 1
	}
	if again >= models.RecomputeBlocks {
		heavy = 1
	}

	m.stream = add("stream", s.Layers+1, s.Hidden)
	m.norm1 = add("norm1", cheap, s.Hidden)
	m.mean1, m.rstd1 = stats("norm1", heavy)
	qkv := heavy
	if s.QKNorm { // then QKV is one more norm's output
		qkv, m.raw = cheap, add("attention.raw", heavy, s.qkv())
	}
	m.qkv, m.o = add("attention.qkv", qkv, s.qkv()), add("attention.o", heavy, s.Heads*s.HeadDim)
	m.lse = single("attention.lse", heavy, s.Heads)
	m.mid = add("stream.mid", heavy, s.Hidden)
	m.norm2 = add("norm2", cheap, s.Hidden)
	m.mean2, m.rstd2 = stats("norm2", heavy)
	m.up, m.act = add("mlp.up", heavy, s.up()), add("mlp.act", cheap, s.FFN)
	m.final = add("norm", 1, s.Hidden)
	m.finalMean, m.finalRstd = stats("norm", 1)
	head.PlanLosses(p, n)
	m.dstream = add("backward.stream", 1, s.Hidden)
	if s.LayerNorm {
		m.unused = p.Add("backward.unused", dtype.F32, 1, s.Hidden)
	}
	p.Overlay(
		func() { head.PlanLogits(p) },
		func() {
			m.dnorm = add("backward.norm", 1, s.Hidden)
			p.Overlay(
				func() { m.dact = add("backward.mlp.act", 1, s.FFN) },
				func() {
					m.dout = add("backward.attention.o", 1, s.Heads*s.HeadDim)
					m.dqkv = add("backward.attention.qkv", 1, s.qkv())
				},
			)
		},
	)
	if s.adapter != nil {
		s.adapter.Plan(p, n)
	}
	return head, m
}

// qkv is the width of queries, keys and values, up that of the feed-forward
// network's first map.
func (s Shape) qkv() int { return (s.Heads + 2*s.KVHeads) * s.HeadDim }
func (s Shape) up() int {
	if s.Gated {
		return 2 * s.FFN
	}
	return s.FFN
}

// Plan is what the model holds beside its parameters, for micro-batches of b
// sequences of t positions, on a device of the given kind.
func (s *Spec) Plan(b, t int, on device.Kind, again models.Recompute) (*models.Plan, error) {
	if t > s.MaxPositions {
		return nil, fmt.Errorf("%s: sequences of %d tokens, the model has %d positions", s.Name, t, s.MaxPositions)
	}
	_, m := s.plan(b, t, on, again)
	return &m.plan, nil
}

// see is slot i of r as [n, width]. A region of one slot is every layer's.
func (m *Model) see(r models.Region, i, n, width int) tensor.Tensor {
	return m.mem.Tensor(r, min(i, r.Count-1), n, width)
}

func (m *Model) stats(mean, rstd models.Region, i, n int) layer.Stats {
	i = min(i, rstd.Count-1)
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
func (m *Model) activations(i int, s Span, docs tensor.Tensor) Activations {
	c, r, n := m.spec.Shape, m.layout, s.B*s.T
	var raw tensor.Tensor
	if c.QKNorm {
		raw = m.see(r.raw, i, n, c.qkv())
	}
	return Activations{
		Span: s, headDim: c.HeadDim, docs: docs,
		X: m.see(r.stream, i, n, c.Hidden), Mid: m.see(r.mid, i, n, c.Hidden), After: m.see(r.stream, i+1, n, c.Hidden),
		Norm1: m.see(r.norm1, i, n, c.Hidden), Stats1: m.stats(r.mean1, r.rstd1, i, n),
		Norm2: m.see(r.norm2, i, n, c.Hidden), Stats2: m.stats(r.mean2, r.rstd2, i, n),
		QKV: m.see(r.qkv, i, n, c.qkv()), Raw: raw, O: m.see(r.o, i, n, c.Heads*c.HeadDim),
		LSE: m.mem.Tensor(r.lse, min(i, r.lse.Count-1), s.B, c.Heads, s.T),
		Up:  m.see(r.up, i, n, c.up()), Act: m.see(r.act, i, n, c.FFN),
	}
}

func (m *Model) gradients(n int) Gradients {
	c, r := m.spec.Shape, m.layout
	return Gradients{
		Norm: m.see(r.dnorm, 0, n, c.Hidden), Act: m.see(r.dact, 0, n, c.FFN),
		O: m.see(r.dout, 0, n, c.Heads*c.HeadDim), QKV: m.see(r.dqkv, 0, n, c.qkv()),
	}
}
