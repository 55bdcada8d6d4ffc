package gpt2

import (
	"github.com/gorun-dev/gorun/models/decoder"
	"github.com/gorun-dev/gorun/models/layer"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Embed adds the rows of the tokens and of their positions.
func (f *family) Embed(p layer.Pass, x, tokens tensor.Tensor, s decoder.Span) {
	f.tokens.Forward(p, x, tokens, false)
	rows, ids := f.sequences(x, s)
	for i := range rows {
		f.positions.Forward(p, rows[i], ids[i], true)
	}
}

// sequences splits x[N,...] into its sequences and pairs each with the ids of its
// positions.
func (f *family) sequences(x tensor.Tensor, s decoder.Span) (parts, ids []tensor.Tensor) {
	for i := range s.B {
		parts = append(parts, x.Rows(i*s.T, (i+1)*s.T))
		ids = append(ids, f.ids.Rows(s.Pos, s.Pos+s.T))
	}
	return parts, ids
}

// Layer runs layer i.
func (f *family) Layer(p layer.Pass, i int, a decoder.Activations) {
	l := f.blocks[i]
	l.norm1.Forward(p, a.Norm1, a.Stats1, a.X)
	l.qkv.Forward(p, []tensor.Tensor{a.Q, a.K, a.V}, a.Norm1)
	a.Attend(p)
	l.out.Forward(p, a.Branch, a.O)
	p.Add(p.Stream, a.Mid, a.X, a.Branch)

	l.norm2.Forward(p, a.Norm2, a.Stats2, a.Mid)
	l.up.Forward(p, a.Up, a.Norm2)
	p.GELU(p.Stream, a.Act, a.Up)
	l.down.Forward(p, a.Branch, a.Act)
	p.Add(p.Stream, a.After, a.Mid, a.Branch)
}
