package gpt2

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Backward hands out scale times the gradient of the sum of the last Forward's
// losses, from the head down to the lowest block with a trainable parameter. It
// uses up the activations: one Backward for a Forward.
func (m *Model) Backward(w param.Weights, g param.GradSink, scale float32) {
	if m.kept.B == 0 {
		panic("gpt2: Backward without a Forward that kept its activations")
	}
	b, n := m.kept, m.kept.B*m.kept.T
	m.kept = models.Batch{}
	lowest, any := layer.FirstTrainable(m.layers.params)
	if !any {
		return
	}
	p := m.pass(w, g)
	see, r := m.mem.Tensor, m.layout
	x, dx := see(r.stream, m.cfg.Layers, n, m.cfg.Hidden), see(r.dstream, 0, n, m.cfg.Hidden)
	final, mean, rstd := m.finalNorm(n)

	p.Use(m.head.Weight.Block)
	m.head.Backward(p, m.mem, dx, final, b.Targets, scale)
	p.Turn(m.head.Weight.Block, m.last())
	m.layers.norm.Backward(p, dx, dx, x, mean, rstd, m.unused(), false)
	p.Done(m.last())

	for i := m.cfg.Layers - 1; i >= max(0, lowest-1); i-- {
		p.Use(1 + i)
		m.backwardLayer(p, i, dx, b.B, b.T)
		p.Done(1 + i)
	}
	if lowest == 0 {
		p.Use(0)
		rows, ids := m.sequences(dx, b.B, 0)
		m.layers.positions.BackwardW(p, rows, ids)
		m.layers.tokens.BackwardW(p, []tensor.Tensor{dx}, []tensor.Tensor{b.Tokens.Reshape(n)})
		p.Done(0)
	}
}

func (m *Model) unused() tensor.Tensor { return m.mem.Tensor(m.layout.unused, 0, m.cfg.Hidden) }

// backwardLayer turns dx[N,C], the gradient of the stream behind layer i, into
// that of the stream before it.
func (m *Model) backwardLayer(p layer.Pass, i int, dx tensor.Tensor, b, t int) {
	c, l, a, n := m.cfg, m.layers.blocks[i], m.at(i, b, t), b*t
	see, r := m.mem.Tensor, m.layout
	dnorm := see(r.dnorm, 0, n, c.Hidden)

	dact := see(r.dact, 0, n, c.FFN)
	l.down.BackwardW(p, dx, a.act)
	l.down.BackwardX(p, dact, dx, false)
	p.GELUBackward(p.Stream, dact, dact, a.up)
	l.up.BackwardW(p, dact, a.norm2)
	l.up.BackwardX(p, dnorm, dact, false)
	l.norm2.Backward(p, dx, dnorm, a.mid, a.mean2, a.rstd2, m.unused(), true)

	dout, dq := see(r.dout, 0, n, c.Hidden), see(r.dq, 0, n, c.Hidden)
	dk, dv := see(r.dk, 0, n, c.Hidden), see(r.dv, 0, n, c.Hidden)
	l.out.BackwardW(p, dx, a.o)
	l.out.BackwardX(p, dout, dx, false)
	p.AttentionBackward(p.Stream, m.heads(dq, b), m.heads(dk, b), m.heads(dv, b), m.heads(dout, b),
		m.heads(a.o, b), a.lse, m.heads(a.q, b), m.heads(a.k, b), m.heads(a.v, b))
	dqkv := []tensor.Tensor{dq, dk, dv}
	l.qkv.BackwardW(p, dqkv, a.norm1)
	l.qkv.BackwardX(p, dnorm, dqkv)
	l.norm1.Backward(p, dx, dnorm, a.x, a.mean1, a.rstd1, m.unused(), true)
}
