package lora

import (
	"github.com/gorun-dev/gorun/models"
	layers "github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// scratch is memory for one layer at a time: what the backward pass needs is computed
// again from x, which costs less than to keep it.
type scratch struct {
	factor  models.Region // [O,G*R], scale times the layer's B
	dfactor models.Region // f32, its gradient
	inner   models.Region // [N,G*R], dropout(x)·Aᵀ, and then its gradient
	dropped models.Region // [N,I], dropout(x), and then a gradient on its way through it
	mem     models.Memory
	current *param.Param // the weight whose gradient inner is
}

// Plan asks for the memory of the largest layer.
func (l *Adapters) Plan(p *models.Plan, n int) {
	var factor, inner, in int
	var dt dtype.DType
	for w, x := range l.layers {
		dt = w.DType
		factor, inner, in = max(factor, w.Shape[0]*x.a.Shape[0]), max(inner, x.a.Shape[0]), max(in, w.Shape[1])
	}
	s := &l.scratch
	s.factor, s.inner = p.Add("lora.factor", dt, 1, factor), p.Add("lora.inner", dt, 1, n*inner)
	s.dfactor = p.Add("backward.lora.factor", dtype.F32, 1, factor)
	if l.Dropout > 0 {
		s.dropped = p.Add("lora.dropped", dt, 1, n*in)
	}
}

// Bind takes the memory.
func (l *Adapters) Bind(mem models.Memory) { l.scratch.mem = mem }

// Forward adds alpha/R · dropout(x)·Aᵀ·Bᵀ to y[N,O].
func (l *Adapters) Forward(p layers.Pass, w *param.Param, y, x tensor.Tensor) {
	on := l.layers[w]
	if on == nil {
		return
	}
	inner := l.inner(on, x.Shape[0])
	p.Linear(p.Stream, inner, l.drop(p, on, x), p.Weight(on.a), tensor.Tensor{}, tensor.Tensor{})
	p.Linear(p.Stream, y, inner, l.factor(p, w, on), tensor.Tensor{}, y)
}

// BackwardW hands out the gradients of B and A, and leaves in inner that of
// dropout(x)·Aᵀ.
func (l *Adapters) BackwardW(p layers.Pass, w *param.Param, dy, x tensor.Tensor) {
	on := l.layers[w]
	if on == nil {
		return
	}
	inner, factor, dropped := l.inner(on, x.Shape[0]), l.factor(p, w, on), l.drop(p, on, x)
	if !on.b.Frozen {
		p.Linear(p.Stream, inner, dropped, p.Weight(on.a), tensor.Tensor{}, tensor.Tensor{})
		d := l.scratch.mem.Tensor(l.scratch.dfactor, 0, factor.Shape...)
		p.LinearBackwardW(p.Stream, d, dy, inner, false)
		g, add := p.Grads.Get(on.b)
		p.Collect(p.Stream, g, d, on.blocks, float32(l.scale()), add)
		p.Grads.Ready(on.b)
	}
	p.LinearBackwardX(p.Stream, inner, dy, factor, false)
	l.scratch.current = w
	if !on.a.Frozen {
		g, add := p.Grads.Get(on.a)
		p.LinearBackwardW(p.Stream, g, inner, dropped, add)
		p.Grads.Ready(on.a)
	}
}

// BackwardX adds to dx[N,I] what comes through A.
func (l *Adapters) BackwardX(p layers.Pass, w *param.Param, dx, _ tensor.Tensor) {
	on := l.layers[w]
	if on == nil {
		return
	}
	if l.scratch.current != w {
		panic("lora: BackwardX of " + w.Name + " is not behind its BackwardW")
	}
	inner := l.inner(on, dx.Shape[0])
	if p.Random == nil || l.Dropout == 0 {
		p.LinearBackwardX(p.Stream, dx, inner, p.Weight(on.a), true)
		return
	}
	d := l.scratch.mem.Tensor(l.scratch.dropped, 0, dx.Shape...)
	p.LinearBackwardX(p.Stream, d, inner, p.Weight(on.a), false)
	p.Dropout(p.Stream, dx, d, l.Dropout, on.random.Uint64(p.Random.Step), p.Random.Row, true)
}

// drop is dropout(x) in training, elsewhere x.
func (l *Adapters) drop(p layers.Pass, on *layer, x tensor.Tensor) tensor.Tensor {
	if p.Random == nil || l.Dropout == 0 {
		return x
	}
	dropped := l.scratch.mem.Tensor(l.scratch.dropped, 0, x.Shape...)
	p.Dropout(p.Stream, dropped, x, l.Dropout, on.random.Uint64(p.Random.Step), p.Random.Row, false)
	return dropped
}

func (l *Adapters) inner(on *layer, n int) tensor.Tensor {
	return l.scratch.mem.Tensor(l.scratch.inner, 0, n, on.a.Shape[0])
}

// factor is scale times the layer's B, along the diagonal.
func (l *Adapters) factor(p layers.Pass, w *param.Param, on *layer) tensor.Tensor {
	f := l.scratch.mem.Tensor(l.scratch.factor, 0, w.Shape[0], on.a.Shape[0])
	p.Spread(p.Stream, f, p.Weight(on.b), on.blocks, float32(l.scale()))
	return f
}
