package llama

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Embed writes the rows of the tokens.
func (f *family) Embed(p layer.Pass, x, tokens tensor.Tensor, _ decoder.Span) {
	f.embed.Forward(p, x, tokens)
}

// Layer runs layer i.
func (f *family) Layer(p layer.Pass, i int, a decoder.Activations) {
	l := f.blocks[i]
	l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
	if l.heads == nil {
		l.qkv.Forward(p, a.QKV, a.Norm1)
	} else {
		l.qkv.Forward(p, a.Raw, a.Norm1)
		l.heads.Forward(p, a.Rows(a.QKV), a.Rows(a.Raw))
	}
	f.turn(p, a)
	a.Attend(p)
	l.o.Add(p, a.Mid, a.O, a.X)

	l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
	l.up.Forward(p, a.Up, a.Norm2)
	p.SwiGLU(p.Stream, a.Act, a.Up)
	if !a.After.None() {
		l.down.Add(p, a.After, a.Act, a.Mid)
	}
}

// turn gives queries and keys their positions.
func (f *family) turn(p layer.Pass, a decoder.Activations) {
	p.RoPE(p.Stream, a.Heads(a.QKV), f.cos, f.sin, f.turning, a.Pos, false)
}
