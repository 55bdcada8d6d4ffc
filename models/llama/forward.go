package llama

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Embed writes the rows of the tokens.
func (f *family) Embed(p layer.Pass, x, tokens tensor.Tensor, _ decoder.Span) {
	f.embed.Forward(p, x, tokens, false)
}

// Layer runs layer i.
func (f *family) Layer(p layer.Pass, i int, a decoder.Activations) {
	l := f.blocks[i]
	l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
	l.q.Forward(p, a.Q, a.Norm1)
	l.k.Forward(p, a.K, a.Norm1)
	l.v.Forward(p, a.V, a.Norm1)
	p.RoPE(p.Stream, a.Heads(a.Q), f.cos, f.sin, a.Pos, false)
	p.RoPE(p.Stream, a.Heads(a.K), f.cos, f.sin, a.Pos, false)
	a.Attend(p)
	l.o.Forward(p, a.Branch, a.O)
	p.Add(p.Stream, a.Mid, a.X, a.Branch)

	l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
	l.gate.Forward(p, a.Gate, a.Norm2)
	l.up.Forward(p, a.Up, a.Norm2)
	p.SwiGLU(p.Stream, a.Act, a.Gate, a.Up)
	l.down.Forward(p, a.Branch, a.Act)
	p.Add(p.Stream, a.After, a.Mid, a.Branch)
}
