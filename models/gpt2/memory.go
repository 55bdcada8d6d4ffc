package gpt2

import (
	"fmt"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// layout is the model's plan and the regions in it.
type layout struct {
	plan models.Plan
	ids  models.Region // [P] i32: 0, 1, 2, ...

	// Kept for the backward pass, a slot a layer; stream has one more, for
	// the last layer's output.
	stream, mid  models.Region // [N,C] the residual stream before attention, before the feed-forward
	norm1, norm2 models.Region // [N,C]
	mean1, rstd1 models.Region // [N]
	mean2, rstd2 models.Region // [N]
	q, k, v, o   models.Region // [N,C]
	lse          models.Region // [B,H,T]
	up, act      models.Region // [N,F]

	final, finalMean, finalRstd models.Region // [N,C], [N], [N]
	branch                      models.Region // [N,C] what a layer adds to the stream, in forward
	dstream, dnorm              models.Region // [N,C] gradients of the stream, of a norm's output
	dact                        models.Region // [N,F]
	dout, dq, dk, dv            models.Region // [N,C]
	unused                      models.Region // [C] a norm's gradient that nobody wants
}

// newLayout lays out the memory for batches of b sequences of t positions.
func newLayout(c Config, head *layer.Head, b, t int) *layout {
	const f32 = dtype.F32
	m, n := &layout{}, b*t
	p := &m.plan
	m.ids = p.Add("positions", dtype.I32, 1, c.MaxPositions)
	m.stream = p.Add("stream", f32, c.Layers+1, n*c.Hidden)
	m.norm1 = p.Add("norm1", f32, c.Layers, n*c.Hidden)
	m.mean1 = p.Add("norm1.mean", f32, c.Layers, n)
	m.rstd1 = p.Add("norm1.rstd", f32, c.Layers, n)
	m.q = p.Add("attention.q", f32, c.Layers, n*c.Hidden)
	m.k = p.Add("attention.k", f32, c.Layers, n*c.Hidden)
	m.v = p.Add("attention.v", f32, c.Layers, n*c.Hidden)
	m.o = p.Add("attention.o", f32, c.Layers, n*c.Hidden)
	m.lse = p.Add("attention.lse", f32, c.Layers, n*c.Heads)
	m.mid = p.Add("stream.mid", f32, c.Layers, n*c.Hidden)
	m.norm2 = p.Add("norm2", f32, c.Layers, n*c.Hidden)
	m.mean2 = p.Add("norm2.mean", f32, c.Layers, n)
	m.rstd2 = p.Add("norm2.rstd", f32, c.Layers, n)
	m.up = p.Add("mlp.up", f32, c.Layers, n*c.FFN)
	m.act = p.Add("mlp.act", f32, c.Layers, n*c.FFN)
	m.final = p.Add("norm", f32, 1, n*c.Hidden)
	m.finalMean = p.Add("norm.mean", f32, 1, n)
	m.finalRstd = p.Add("norm.rstd", f32, 1, n)
	head.PlanLosses(p, n)
	m.dstream = p.Add("backward.stream", f32, 1, n*c.Hidden)
	m.unused = p.Add("backward.unused", f32, 1, c.Hidden)
	p.Overlay(
		func() { m.branch = p.Add("forward.branch", f32, 1, n*c.Hidden) },
		func() { head.PlanLogits(p) },
		func() {
			m.dnorm = p.Add("backward.norm", f32, 1, n*c.Hidden)
			p.Overlay(
				func() { m.dact = p.Add("backward.mlp.act", f32, 1, n*c.FFN) },
				func() {
					m.dout = p.Add("backward.attention.o", f32, 1, n*c.Hidden)
					m.dq = p.Add("backward.attention.q", f32, 1, n*c.Hidden)
					m.dk = p.Add("backward.attention.k", f32, 1, n*c.Hidden)
					m.dv = p.Add("backward.attention.v", f32, 1, n*c.Hidden)
				},
			)
		},
	)
	return m
}

// PlanMemory is what a model of shape c holds beside its parameters, for
// micro-batches of b sequences of t positions.
func PlanMemory(c Config, b, t int) (*models.Plan, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	if t > c.MaxPositions {
		return nil, fmt.Errorf("gpt2: sequences of %d tokens, the model has %d positions", t, c.MaxPositions)
	}
	head := layer.NewHead(newLayers(c).head, c.Tied, b*t)
	return &newLayout(c, &head, b, t).plan, nil
}

// saved is what one layer's forward pass leaves for its backward pass.
type saved struct {
	x, norm1, mean1, rstd1   tensor.Tensor
	q, k, v, o, lse          tensor.Tensor // all [N,C] but lse
	mid, norm2, mean2, rstd2 tensor.Tensor
	up, act, after           tensor.Tensor
}

// at sees layer i's slots for b sequences of t positions.
func (m *Model) at(i, b, t int) saved {
	c, n := m.cfg, b*t
	see, r := m.mem.Tensor, m.layout
	return saved{
		x: see(r.stream, i, n, c.Hidden), norm1: see(r.norm1, i, n, c.Hidden), mean1: see(r.mean1, i, n), rstd1: see(r.rstd1, i, n),
		q: see(r.q, i, n, c.Hidden), k: see(r.k, i, n, c.Hidden), v: see(r.v, i, n, c.Hidden), o: see(r.o, i, n, c.Hidden),
		lse: see(r.lse, i, b, c.Heads, t),
		mid: see(r.mid, i, n, c.Hidden), norm2: see(r.norm2, i, n, c.Hidden), mean2: see(r.mean2, i, n), rstd2: see(r.rstd2, i, n),
		up: see(r.up, i, n, c.FFN), act: see(r.act, i, n, c.FFN), after: see(r.stream, i+1, n, c.Hidden),
	}
}
