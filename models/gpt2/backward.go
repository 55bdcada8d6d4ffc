package gpt2

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// EmbedBackward hands out the gradients of both tables.
func (f *family) EmbedBackward(p layer.Pass, dx, tokens tensor.Tensor, s decoder.Span) {
	f.positions.BackwardW(p, sequences(dx, s))
	f.tokens.BackwardW(p, dx, tokens)
}

// LayerBackward runs layer i backward.
func (f *family) LayerBackward(p layer.Pass, i int, a decoder.Activations, g decoder.Gradients, dx tensor.Tensor) {
	l := f.blocks[i]
	if a.Lost {
		l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
		l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
		p.GELU(p.Stream, a.Act, a.Up)
	}
	l.down.BackwardW(p, dx, a.Act)
	if !p.Below(l.down.Weight) {
		return
	}
	l.down.BackwardX(p, g.Act, dx, false)
	p.GELUBackward(p.Stream, g.Act, g.Act, a.Up)
	l.up.BackwardW(p, g.Act, a.Norm2)
	if !p.Below(l.up.Weight) {
		return
	}
	l.up.BackwardX(p, g.Norm, g.Act, false)
	l.norm2.Backward(p, dx, g.Norm, a.Mid, a.Stats2, true)

	l.out.BackwardW(p, dx, a.O)
	if !p.Below(l.out.Weight) {
		return
	}
	l.out.BackwardX(p, g.O, dx, false)
	a.AttendBackward(p, g)
	l.qkv.BackwardW(p, g.QKV, a.Norm1)
	if !p.Below(l.qkv.Weight) {
		return
	}
	l.qkv.BackwardX(p, g.Norm, g.QKV, false)
	l.norm1.Backward(p, dx, g.Norm, a.X, a.Stats1, true)
}
