package layer

import (
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Fused is several affine maps of one x whose weights lie one behind the other
// in one parameter, as GPT-2's queries, keys and values do.
type Fused struct {
	Weight *param.Param // [P*O,I]
	Bias   *param.Param // [P*O]
}

// part is rows [i*O, (i+1)*O) of t, for P parts.
func part(t tensor.Tensor, i, parts int) tensor.Tensor {
	o := t.Shape[0] / parts
	return t.Rows(i*o, (i+1)*o)
}

// Forward writes the P tensors ys[N,O] from x[N,I].
func (f Fused) Forward(p Pass, ys []tensor.Tensor, x tensor.Tensor) {
	w, b := p.Weight(f.Weight), p.Weight(f.Bias)
	for i, y := range ys {
		p.Linear(p.Stream, y, x, part(w, i, len(ys)), part(b, i, len(ys)))
	}
}

// BackwardW hands out the gradients of Bias and Weight from dys[N,O] and x[N,I].
func (f Fused) BackwardW(p Pass, dys []tensor.Tensor, x tensor.Tensor) {
	if !f.Bias.Frozen {
		g, add := p.Grads.Get(f.Bias)
		for i, dy := range dys {
			p.BiasBackward(p.Stream, part(g, i, len(dys)), dy, add)
		}
		p.Grads.Ready(f.Bias)
	}
	if !f.Weight.Frozen {
		g, add := p.Grads.Get(f.Weight)
		for i, dy := range dys {
			p.LinearBackwardW(p.Stream, part(g, i, len(dys)), dy, x, add)
		}
		p.Grads.Ready(f.Weight)
	}
}

// BackwardX writes dx[N,I] from dys[N,O].
func (f Fused) BackwardX(p Pass, dx tensor.Tensor, dys []tensor.Tensor) {
	w := p.Weight(f.Weight)
	for i, dy := range dys {
		p.LinearBackwardX(p.Stream, dx, dy, part(w, i, len(dys)), i > 0)
	}
}
