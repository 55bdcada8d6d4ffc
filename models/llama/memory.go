package llama

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// layout is the model's plan and the regions in it.
type layout struct {
	plan     models.Plan
	cos, sin models.Region // [P, D/2]

	// Kept for the backward pass, a slot a layer; stream has one more, for
	// the last layer's output.
	stream, mid      models.Region // [N,C] the residual stream before attention, before the feed-forward
	norm1, norm2     models.Region // [N,C]
	rstd1, rstd2     models.Region // [N]
	q, o             models.Region // [N,H*D]
	k, v             models.Region // [N,K*D]
	lse              models.Region // [B,H,T]
	gate, up, act    models.Region // [N,F]; backward turns gate and up into their gradients
	final, finalRstd models.Region // [N,C], [N]
	branch           models.Region // [N,C] what a layer adds to the stream, in forward
	dstream, dnorm   models.Region // [N,C] gradients of the stream, of a norm's output
	dact             models.Region // [N,F]
	dout, dq         models.Region // [N,H*D]
	dk, dv           models.Region // [N,K*D]
}

// newLayout lays out the memory for batches of b sequences of t positions.
func newLayout(c Config, head *layer.Head, b, t int) *layout {
	const f32 = dtype.F32
	m, n := &layout{}, b*t
	p := &m.plan
	m.cos = p.Add("rope.cos", f32, 1, c.MaxPositions*c.HeadDim/2)
	m.sin = p.Add("rope.sin", f32, 1, c.MaxPositions*c.HeadDim/2)
	m.stream = p.Add("stream", f32, c.Layers+1, n*c.Hidden)
	m.norm1 = p.Add("norm1", f32, c.Layers, n*c.Hidden)
	m.rstd1 = p.Add("norm1.rstd", f32, c.Layers, n)
	m.q = p.Add("attention.q", f32, c.Layers, n*c.Heads*c.HeadDim)
	m.k = p.Add("attention.k", f32, c.Layers, n*c.KVHeads*c.HeadDim)
	m.v = p.Add("attention.v", f32, c.Layers, n*c.KVHeads*c.HeadDim)
	m.o = p.Add("attention.o", f32, c.Layers, n*c.Heads*c.HeadDim)
	m.lse = p.Add("attention.lse", f32, c.Layers, n*c.Heads)
	m.mid = p.Add("stream.mid", f32, c.Layers, n*c.Hidden)
	m.norm2 = p.Add("norm2", f32, c.Layers, n*c.Hidden)
	m.rstd2 = p.Add("norm2.rstd", f32, c.Layers, n)
	m.gate = p.Add("mlp.gate", f32, c.Layers, n*c.FFN)
	m.up = p.Add("mlp.up", f32, c.Layers, n*c.FFN)
	m.act = p.Add("mlp.act", f32, c.Layers, n*c.FFN)
	m.final = p.Add("norm", f32, 1, n*c.Hidden)
	m.finalRstd = p.Add("norm.rstd", f32, 1, n)
	head.PlanLosses(p, n)
	m.dstream = p.Add("backward.stream", f32, 1, n*c.Hidden)
	p.Overlay(
		func() { m.branch = p.Add("forward.branch", f32, 1, n*c.Hidden) },
		func() { head.PlanLogits(p) },
		func() {
			m.dnorm = p.Add("backward.norm", f32, 1, n*c.Hidden)
			p.Overlay(
				func() { m.dact = p.Add("backward.mlp.act", f32, 1, n*c.FFN) },
				func() {
					m.dout = p.Add("backward.attention.o", f32, 1, n*c.Heads*c.HeadDim)
					m.dq = p.Add("backward.attention.q", f32, 1, n*c.Heads*c.HeadDim)
					m.dk = p.Add("backward.attention.k", f32, 1, n*c.KVHeads*c.HeadDim)
					m.dv = p.Add("backward.attention.v", f32, 1, n*c.KVHeads*c.HeadDim)
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
		return nil, fmt.Errorf("llama: sequences of %d tokens, the model has %d positions", t, c.MaxPositions)
	}
	head := layer.NewHead(newLayers(c).head, c.Tied, b*t)
	return &newLayout(c, &head, b, t).plan, nil
}

// saved is what one layer's forward pass leaves for its backward pass.
type saved struct {
	x, norm1, rstd1      tensor.Tensor
	q, k, v, o, lse      tensor.Tensor // all [N, ...] but lse
	mid, norm2, rstd2    tensor.Tensor
	gate, up, act, after tensor.Tensor
}

// at sees layer i's slots for b sequences of t positions.
func (m *Model) at(i, b, t int) saved {
	c, n := m.cfg, b*t
	see, r := m.mem.Tensor, m.layout
	return saved{
		x: see(r.stream, i, n, c.Hidden), norm1: see(r.norm1, i, n, c.Hidden), rstd1: see(r.rstd1, i, n),
		q: see(r.q, i, n, c.Heads*c.HeadDim), k: see(r.k, i, n, c.KVHeads*c.HeadDim), v: see(r.v, i, n, c.KVHeads*c.HeadDim),
		o: see(r.o, i, n, c.Heads*c.HeadDim), lse: see(r.lse, i, b, c.Heads, t),
		mid: see(r.mid, i, n, c.Hidden), norm2: see(r.norm2, i, n, c.Hidden), rstd2: see(r.rstd2, i, n),
		gate: see(r.gate, i, n, c.FFN), up: see(r.up, i, n, c.FFN), act: see(r.act, i, n, c.FFN),
		after: see(r.stream, i+1, n, c.Hidden),
	}
}

// rope fills the tables of rotary positions: angle(p, i) = p * theta^(-2i/D),
// computed in f64.
func (c Config) rope(cos, sin []float32) {
	half := c.HeadDim / 2
	for i := range half {
		frequency := math.Pow(c.RopeTheta, -float64(2*i)/float64(c.HeadDim))
		for p := range c.MaxPositions {
			s, co := math.Sincos(float64(p) * frequency)
			cos[p*half+i], sin[p*half+i] = float32(co), float32(s)
		}
	}
}
