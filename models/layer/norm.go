package layer

import (
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// RMSNorm is the root-mean-square normalisation over C.
type RMSNorm struct {
	Weight *param.Param // [C]
	Eps    float32
}

// Forward writes y[N,C] and rstd[N] from x[N,C].
func (n RMSNorm) Forward(p Pass, y, rstd, x tensor.Tensor) {
	p.RMSNorm(p.Stream, y, rstd, x, p.Weight(n.Weight), n.Eps)
}

// Backward writes or adds dx and hands out the gradient of Weight. dx may be dy.
func (n RMSNorm) Backward(p Pass, dx, dy, x, rstd tensor.Tensor, addX bool) {
	var dw tensor.Tensor
	var addW bool
	if !n.Weight.Frozen {
		dw, addW = p.Grads.Get(n.Weight)
	}
	p.RMSNormBackward(p.Stream, dx, dw, dy, x, p.Weight(n.Weight), rstd, addX, addW)
	if !n.Weight.Frozen {
		p.Grads.Ready(n.Weight)
	}
}

// LayerNorm is the normalisation of mean and variance over C.
type LayerNorm struct {
	Weight, Bias *param.Param // [C]
	Eps          float32
}

// Forward writes y[N,C], mean[N] and rstd[N] from x[N,C].
func (n LayerNorm) Forward(p Pass, y, mean, rstd, x tensor.Tensor) {
	p.LayerNorm(p.Stream, y, mean, rstd, x, p.Weight(n.Weight), p.Weight(n.Bias), n.Eps)
}

// Backward writes or adds dx and hands out the gradients of Bias and Weight.
// dx may be dy. unused[C] takes the gradient of the one that is frozen when the
// other is not, for the operation makes both.
func (n LayerNorm) Backward(p Pass, dx, dy, x, mean, rstd, unused tensor.Tensor, addX bool) {
	trainW, trainB := !n.Weight.Frozen, !n.Bias.Frozen
	dw, addW, db, addB := unused, true, unused, true
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
	p.LayerNormBackward(p.Stream, dx, dw, db, dy, x, p.Weight(n.Weight), mean, rstd, addX, addW)
	if trainB {
		p.Grads.Ready(n.Bias)
	}
	if trainW {
		p.Grads.Ready(n.Weight)
	}
}
