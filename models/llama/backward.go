package llama

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// EmbedBackward hands out the gradient of the embedding.
func (f *family) EmbedBackward(p layer.Pass, dx, tokens tensor.Tensor, _ decoder.Span) {
	f.embed.BackwardW(p, dx, tokens)
}

// LayerBackward runs layer i backward.
func (f *family) LayerBackward(p layer.Pass, i int, a decoder.Activations, g decoder.Gradients, dx tensor.Tensor) {
	l := f.blocks[i]
	if a.Lost {
		l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
		l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
		p.SwiGLU(p.Stream, a.Act, a.Up)
		if l.heads != nil {
			l.heads.Forward(p, a.Rows(a.QKV), a.Rows(a.Raw))
			f.turn(p, a)
		}
	}
	l.down.BackwardW(p, dx, a.Act)
	if !p.Below(l.down.Weight) {
		return
	}
	l.down.BackwardX(p, g.Act, dx, false)
	dup := a.Up
	p.SwiGLUBackward(p.Stream, dup, g.Act, a.Up)
	l.up.BackwardW(p, dup, a.Norm2)
	if !p.Below(l.up.Weight) {
		return
	}
	l.up.BackwardX(p, g.Norm, dup, false)
	l.norm2.Backward(p, dx, g.Norm, a.Mid, a.Stats2, true)

	l.o.BackwardW(p, dx, a.O)
	if !p.Below(l.o.Weight) {
		return
	}
	l.o.BackwardX(p, g.O, dx, false)
	a.AttendBackward(p, g)
	p.RoPE(p.Stream, a.Heads(g.QKV), f.cos, f.sin, f.turning, 0, true)
	if l.heads != nil {
		l.heads.Backward(p, a.Rows(g.QKV), a.Rows(a.Raw))
	}
	l.qkv.BackwardW(p, g.QKV, a.Norm1)
	if !p.Below(l.qkv.Weight) {
		return
	}
	l.qkv.BackwardX(p, g.Norm, g.QKV, false)
	l.norm1.Backward(p, dx, g.Norm, a.X, a.Stats1, true)
}
