package layer

import (
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Norm is a normalisation over C.
type Norm interface {
	// Forward writes y[N,C] and s from x[N,C].
	Forward(p Pass, y tensor.Tensor, s Stats, x tensor.Tensor)
	// Backward writes or adds dx and hands out the gradients of the
	// parameters. dx may be dy.
	Backward(p Pass, dx, dy, x tensor.Tensor, s Stats, addX bool)
}

// Stats is what a norm's forward pass leaves for its backward pass.
type Stats struct {
	Rstd tensor.Tensor // [N]
	// Mean[N] and Unused[C], which is scratch, are LayerNorm's.
	Mean, Unused tensor.Tensor
}

// RMSNorm is the root-mean-square normalisation.
type RMSNorm struct {
	Weight *param.Param // [C]
	Eps    float32
}

func (n RMSNorm) Forward(p Pass, y tensor.Tensor, s Stats, x tensor.Tensor) {
	p.RMSNorm(p.Stream, y, s.Rstd, x, p.Weight(n.Weight), n.Eps)
}

func (n RMSNorm) Backward(p Pass, dx, dy, x tensor.Tensor, s Stats, addX bool) {
	var dw tensor.Tensor
	var addW bool
	if !n.Weight.Frozen {
		dw, addW = p.Grads.Get(n.Weight)
	}
	p.RMSNormBackward(p.Stream, dx, dw, dy, x, p.Weight(n.Weight), s.Rstd, addX, addW)
	if !n.Weight.Frozen {
		p.Grads.Ready(n.Weight)
	}
}

// QKNorm is the root-mean-square normalisation of each head of queries and of keys by
// itself.
type QKNorm struct {
	Queries, Keys *param.Param // [D]
	Heads         int          // of queries
	Eps           float32
}

// Forward writes y from x, both [N,H+2K,D]: queries and keys normalised, and values.
func (n QKNorm) Forward(p Pass, y, x tensor.Tensor) {
	p.QKNorm(p.Stream, y, x, p.Weight(n.Queries), p.Weight(n.Keys), n.Heads, n.Eps)
}

// Backward turns dx from the gradient of y into that of x, and hands out the gradients
// of the parameters.
func (n QKNorm) Backward(p Pass, dx, x tensor.Tensor) {
	var dq, dk tensor.Tensor
	var addQ, addK bool
	if !n.Queries.Frozen {
		dq, addQ = p.Grads.Get(n.Queries)
	}
	if !n.Keys.Frozen {
		dk, addK = p.Grads.Get(n.Keys)
	}
	p.QKNormBackward(p.Stream, dx, dq, dk, x, p.Weight(n.Queries), p.Weight(n.Keys), n.Heads, n.Eps, addQ, addK)
	if !n.Keys.Frozen {
		p.Grads.Ready(n.Keys)
	}
	if !n.Queries.Frozen {
		p.Grads.Ready(n.Queries)
	}
}

// LayerNorm is the normalisation of mean and variance.
type LayerNorm struct {
	Weight, Bias *param.Param // [C]
	Eps          float32
}

func (n LayerNorm) Forward(p Pass, y tensor.Tensor, s Stats, x tensor.Tensor) {
	p.LayerNorm(p.Stream, y, s.Mean, s.Rstd, x, p.Weight(n.Weight), p.Weight(n.Bias), n.Eps)
}

// Backward lets Unused take the gradient of the parameter that is frozen when the
// other is not, for the operation makes both.
func (n LayerNorm) Backward(p Pass, dx, dy, x tensor.Tensor, s Stats, addX bool) {
	trainW, trainB := !n.Weight.Frozen, !n.Bias.Frozen
	dw, addW, db, addB := s.Unused, true, s.Unused, true
	if trainW {
		dw, addW = p.Grads.Get(n.Weight)
	}
	if trainB {
		db, addB = p.Grads.Get(n.Bias)
	}
	switch {
	case !trainW && !trainB:
		dw, db = tensor.Tensor{}, tensor.Tensor{}
	case !trainW:
		addW = addB
	case !trainB:
		addB = addW
	case addW != addB:
		// The operation knows one flag for both.
		clear := dw
		if addW {
			clear = db
		}
		p.Zero(p.Stream, clear)
		addW = true
	}
	p.LayerNormBackward(p.Stream, dx, dw, db, dy, x, p.Weight(n.Weight), s.Mean, s.Rstd, addX, addW)
	if trainB {
		p.Grads.Ready(n.Bias)
	}
	if trainW {
		p.Grads.Ready(n.Weight)
	}
}
