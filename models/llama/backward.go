package llama

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// EmbedBackward hands out the gradient of the embedding.
func (f *family) EmbedBackward(p layer.Pass, dx, tokens tensor.Tensor, _ decoder.Span) {
	f.embed.BackwardW(p, []tensor.Tensor{dx}, []tensor.Tensor{tokens})
}

// LayerBackward runs layer i backward.
func (f *family) LayerBackward(p layer.Pass, i int, a decoder.Activations, g decoder.Gradients, dx tensor.Tensor) {
	l := f.blocks[i]
	l.down.BackwardW(p, dx, a.Act)
	l.down.BackwardX(p, g.Act, dx, false)
	dgate, dup := a.Gate, a.Up
	p.SwiGLUBackward(p.Stream, dgate, dup, g.Act, a.Gate, a.Up)
	l.up.BackwardW(p, dup, a.Norm2)
	l.gate.BackwardW(p, dgate, a.Norm2)
	l.up.BackwardX(p, g.Norm, dup, false)
	l.gate.BackwardX(p, g.Norm, dgate, true)
	l.norm2.Backward(p, dx, g.Norm, a.Mid, a.Stats2, true)

	l.o.BackwardW(p, dx, a.O)
	l.o.BackwardX(p, g.O, dx, false)
	a.AttendBackward(p, g)
	p.RoPE(p.Stream, a.Heads(g.K), f.cos, f.sin, 0, true)
	p.RoPE(p.Stream, a.Heads(g.Q), f.cos, f.sin, 0, true)
	l.v.BackwardW(p, g.V, a.Norm1)
	l.k.BackwardW(p, g.K, a.Norm1)
	l.q.BackwardW(p, g.Q, a.Norm1)
	l.v.BackwardX(p, g.Norm, g.V, false)
	l.k.BackwardX(p, g.Norm, g.K, true)
	l.q.BackwardX(p, g.Norm, g.Q, true)
	l.norm1.Backward(p, dx, g.Norm, a.X, a.Stats1, true)
}
