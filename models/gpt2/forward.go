package gpt2

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Embed adds the rows of the tokens and of their positions.
func (f *family) Embed(p layer.Pass, x, tokens tensor.Tensor, s decoder.Span) {
	f.tokens.Forward(p, x, tokens)
	f.positions.Forward(p, sequences(x, s), s.Pos)
}

// sequences sees x[N,C] as [B,T,C].
func sequences(x tensor.Tensor, s decoder.Span) tensor.Tensor { return x.Reshape(s.B, s.T, x.Shape[1]) }

// Layer runs layer i.
func (f *family) Layer(p layer.Pass, i int, a decoder.Activations) {
	l := f.blocks[i]
	l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
	l.qkv.Forward(p, a.QKV, a.Norm1)
	a.Attend(p)
	l.out.Add(p, a.Mid, a.O, a.X)

	l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
	l.up.Forward(p, a.Up, a.Norm2)
	p.GELU(p.Stream, a.Act, a.Up)
	if !a.After.None() {
		l.down.Add(p, a.After, a.Act, a.Mid)
	}
}
