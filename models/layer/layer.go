// Package layer holds the parts that model families share: a parameter or two,
// the forward pass and the explicit backward pass.
//
// A BackwardW method hands out the gradients of the layer's parameters, the last
// listed first, and calls Ready as soon as the last write is enqueued; for a
// frozen parameter it enqueues nothing. Letters are those of package models.
package layer

import (
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Pass is what one forward or backward pass works with.
type Pass struct {
	models.Ops
	Stream device.Stream
	param.Weights
	Grads param.GradSink // nil in a forward pass
	// Below says, in a backward pass, whether anything that the forward pass uses before
	// p is trained: where nothing is, no gradient is needed there.
	Below func(p *param.Param) bool
	// Adapter adds to what linear layers compute; nil where nothing does.
	Adapter Adapter
	// Random is of the batch in training. Elsewhere nothing is random: it is nil.
	Random *Random
}

// Random is what random numbers of a pass follow from, beside a seed and a name.
type Random struct {
	Step uint64 // of training
	Row  uint64 // of the batch over all ranks, the pass's first
}

// Adapter is further maps beside linear layers, each of which is known by its weight
// w, with parameters of their own. A layer without one is left as it is.
type Adapter interface {
	// Forward adds to y[N,O] the map of x[N,I].
	Forward(p Pass, w *param.Param, y, x tensor.Tensor)
	// BackwardW hands out the gradients of the map's parameters, from dy[N,O] and x[N,I].
	BackwardW(p Pass, w *param.Param, dy, x tensor.Tensor)
	// BackwardX adds to dx[N,I]. It comes right behind BackwardW, with the same dy.
	BackwardX(p Pass, w *param.Param, dx, dy tensor.Tensor)
}

// Linear is the affine map y = x · Weightᵀ + Bias. Several maps of one x are one,
// with their weights one behind the other (param.Param.Parts).
type Linear struct {
	Weight *param.Param // [O,I]
	Bias   *param.Param // [O], nil where there is none
}

// Forward writes y[N,O] from x[N,I].
func (l Linear) Forward(p Pass, y, x tensor.Tensor) { l.Add(p, y, x, tensor.Tensor{}) }

// Add writes the map of x[N,I] plus r[N,O] to y[N,O].
func (l Linear) Add(p Pass, y, x, r tensor.Tensor) {
	var bias tensor.Tensor
	if l.Bias != nil {
		bias = p.Weight(l.Bias)
	}
	p.Linear(p.Stream, y, x, p.Weight(l.Weight), bias, r)
	if p.Adapter != nil {
		p.Adapter.Forward(p, l.Weight, y, x)
	}
}

// BackwardW hands out the gradients of the adapter's parameters, of Bias and of
// Weight from dy[N,O] and x[N,I].
func (l Linear) BackwardW(p Pass, dy, x tensor.Tensor) {
	if p.Adapter != nil {
		p.Adapter.BackwardW(p, l.Weight, dy, x)
	}
	if l.Bias != nil && !l.Bias.Frozen {
		g, add := p.Grads.Get(l.Bias)
		p.BiasBackward(p.Stream, g, dy, add)
		p.Grads.Ready(l.Bias)
	}
	if !l.Weight.Frozen {
		g, add := p.Grads.Get(l.Weight)
		p.LinearBackwardW(p.Stream, g, dy, x, add)
		p.Grads.Ready(l.Weight)
	}
}

// BackwardX writes or adds dx[N,I] from dy[N,O], right behind BackwardW.
func (l Linear) BackwardX(p Pass, dx, dy tensor.Tensor, add bool) {
	p.LinearBackwardX(p.Stream, dx, dy, p.Weight(l.Weight), add)
	if p.Adapter != nil {
		p.Adapter.BackwardX(p, l.Weight, dx, dy)
	}
}

// Embedding is a table of rows.
type Embedding struct {
	Table *param.Param // [V,C]
}

// Forward writes y[N,C], the rows of ids[N].
func (e Embedding) Forward(p Pass, y, ids tensor.Tensor) {
	p.Embed(p.Stream, y, p.Weight(e.Table), ids)
}

// BackwardW hands out the gradient of the table from dy[N,C] and ids[N]. It must be
// the last writer when the table is tied to the head.
func (e Embedding) BackwardW(p Pass, dy, ids tensor.Tensor) {
	if e.Table.Frozen {
		return
	}
	if rows, ok := p.Grads.(param.RowSink); ok {
		if g, allDy, allIDs, promised := rows.GatherRows(e.Table, dy, ids); promised {
			p.EmbedBackward(p.Stream, g, allDy, allIDs, true)
			return
		}
	}
	g, add := p.Grads.Get(e.Table)
	p.EmbedBackward(p.Stream, g, dy, ids, add)
	p.Grads.Ready(e.Table)
}

// Positions is a table of rows, one for each position of a text.
type Positions struct {
	Table *param.Param // [P,C]
}

// Forward adds the rows of positions pos, pos+1, ... to y[B,T,C].
func (e Positions) Forward(p Pass, y tensor.Tensor, pos int) {
	p.Positions(p.Stream, y, p.Weight(e.Table), pos)
}

// BackwardW hands out the gradient of the table from dy[B,T,C], whose texts begin
// at position 0.
func (e Positions) BackwardW(p Pass, dy tensor.Tensor) {
	if e.Table.Frozen {
		return
	}
	g, add := p.Grads.Get(e.Table)
	p.PositionsBackward(p.Stream, g, dy, add)
	p.Grads.Ready(e.Table)
}
