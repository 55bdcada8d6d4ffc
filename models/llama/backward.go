package llama

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
		panic("llama: Backward without a Forward that kept its activations")
	}
	b, n := m.kept, m.kept.B*m.kept.T
	m.kept = models.Batch{}
	lowest, any := layer.FirstTrainable(m.layers.params)
	if !any {
		return
	}
	p := m.pass(w, g)
	x := m.mem.Tensor(m.layout.stream, m.cfg.Layers, n, m.cfg.Hidden)
	dx := m.mem.Tensor(m.layout.dstream, 0, n, m.cfg.Hidden)
	final, rstd := m.finalNorm(n)

	p.Use(m.head.Weight.Block)
	m.head.Backward(p, m.mem, dx, final, b.Targets, scale)
	p.Turn(m.head.Weight.Block, m.last())
	m.layers.norm.Backward(p, dx, dx, x, rstd, false)
	p.Done(m.last())

	for i := m.cfg.Layers - 1; i >= max(0, lowest-1); i-- {
		p.Use(1 + i)
		m.backwardLayer(p, i, dx, b.B, b.T)
		p.Done(1 + i)
	}
	if lowest == 0 {
		p.Use(0)
		m.layers.embed.BackwardW(p, []tensor.Tensor{dx}, []tensor.Tensor{b.Tokens.Reshape(n)})
		p.Done(0)
	}
}

// backwardLayer turns dx[N,C], the gradient of the stream behind layer i, into
// that of the stream before it.
func (m *Model) backwardLayer(p layer.Pass, i int, dx tensor.Tensor, b, t int) {
	c, l, a, n := m.cfg, m.layers.blocks[i], m.at(i, b, t), b*t
	see, r := m.mem.Tensor, m.layout
	dnorm := see(r.dnorm, 0, n, c.Hidden)

	dact := see(r.dact, 0, n, c.FFN)
	l.down.BackwardW(p, dx, a.act)
	l.down.BackwardX(p, dact, dx, false)
	dgate, dup := a.gate, a.up
	p.SwiGLUBackward(p.Stream, dgate, dup, dact, a.gate, a.up)
	l.up.BackwardW(p, dup, a.norm2)
	l.gate.BackwardW(p, dgate, a.norm2)
	l.up.BackwardX(p, dnorm, dup, false)
	l.gate.BackwardX(p, dnorm, dgate, true)
	l.norm2.Backward(p, dx, dnorm, a.mid, a.rstd2, true)

	dout := see(r.dout, 0, n, c.Heads*c.HeadDim)
	dq := see(r.dq, 0, n, c.Heads*c.HeadDim)
	dk, dv := see(r.dk, 0, n, c.KVHeads*c.HeadDim), see(r.dv, 0, n, c.KVHeads*c.HeadDim)
	l.o.BackwardW(p, dx, a.o)
	l.o.BackwardX(p, dout, dx, false)
	p.AttentionBackward(p.Stream, m.heads(dq, b), m.heads(dk, b), m.heads(dv, b), m.heads(dout, b),
		m.heads(a.o, b), a.lse, m.heads(a.q, b), m.heads(a.k, b), m.heads(a.v, b))
	p.RoPE(p.Stream, m.heads(dk, b), m.cos, m.sin, 0, true)
	p.RoPE(p.Stream, m.heads(dq, b), m.cos, m.sin, 0, true)
	l.v.BackwardW(p, dv, a.norm1)
	l.k.BackwardW(p, dk, a.norm1)
	l.q.BackwardW(p, dq, a.norm1)
	l.v.BackwardX(p, dnorm, dv, false)
	l.k.BackwardX(p, dnorm, dk, true)
	l.q.BackwardX(p, dnorm, dq, true)
	l.norm1.Backward(p, dx, dnorm, a.x, a.rstd1, true)
}
