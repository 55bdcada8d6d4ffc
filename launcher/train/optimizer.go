package train

import (
	"math"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// stepper is the arithmetic of an optimizer step; kernels implements it.
type stepper interface {
	SumSquares(s device.Stream, out, x tensor.Tensor, add bool)
	AdamW(s device.Stream, w, m, v, g tensor.Tensor, h adamw.Hyper)
}

// gradients is where the reduced gradients lie.
type gradients interface {
	Buckets() []ddp.Bucket
	Grad(p *param.Param) tensor.Tensor
}

// optimizer is AdamW over a replica: clipping by the global norm, and a step
// that changes nothing where the norm or the loss is not finite.
type optimizer struct {
	c      config.Train
	params []*param.Param // trainable
	m, v   map[*param.Param]tensor.Tensor
	norm2  tensor.Tensor // f64[1], the square of the gradients' norm
	coef   tensor.Tensor // f64[1], what clipping multiplies by; NaN where the norm or the loss is not finite
	// applied counts the steps that changed the weights: the bias correction of
	// the moments runs on it.
	applied int
}

func newOptimizer(d device.Device, c config.Train, params []*param.Param) (*optimizer, error) {
	o := &optimizer{c: c, m: map[*param.Param]tensor.Tensor{}, v: map[*param.Param]tensor.Tensor{}}
	alloc := func(dt dtype.DType, shape ...int) (t tensor.Tensor, err error) { return tensor.Alloc(d, dt, shape...) }
	var err error
	for _, p := range params {
		if p.Frozen {
			continue
		}
		o.params = append(o.params, p)
		if o.m[p], err = alloc(dtype.F32, p.Shape...); err != nil {
			return nil, err
		}
		if o.v[p], err = alloc(dtype.F32, p.Shape...); err != nil {
			return nil, err
		}
	}
	if o.norm2, err = alloc(dtype.F64, 1); err != nil {
		return nil, err
	}
	o.coef, err = alloc(dtype.F64, 1)
	return o, err
}

// step enqueues the norm, the clipping and the update of every weight on s,
// behind the reduction of the gradients and of the loss [1] f64.
func (o *optimizer) step(s *device.CPUStream, ops stepper, w param.Weights, g gradients, loss tensor.Tensor, lr float64) {
	for i, b := range g.Buckets() {
		ops.SumSquares(s, o.norm2, b.Flat, i > 0)
	}
	s.Do("clip", func() error {
		o.coef.F64()[0] = clipCoefficient(o.norm(), o.c.MaxGradNorm)
		if !ddp.Finite(loss.F64()[0]) {
			o.coef.F64()[0] = math.NaN()
		}
		return nil
	})
	h := adamw.Hyper{LR: lr, Beta1: o.c.Betas[0], Beta2: o.c.Betas[1], Eps: o.c.Eps, Step: o.applied + 1, Scale: o.coef}
	for _, p := range o.params {
		grad := g.Grad(p)
		if grad.None() {
			continue // no rank used the parameter in this step
		}
		h.WeightDecay = o.c.WeightDecay
		if p.NoDecay {
			h.WeightDecay = 0
		}
		ops.AdamW(s, w.Weight(p), o.m[p], o.v[p], grad, h)
	}
}

// norm is the global norm of the gradients before clipping, once the stream has
// passed it.
func (o *optimizer) norm() float64 { return math.Sqrt(o.norm2.F64()[0]) }

// finish counts the step, unless its norm or loss was not finite and it was
// skipped.
func (o *optimizer) finish() (skipped bool) {
	if math.IsNaN(o.coef.F64()[0]) {
		return true
	}
	o.applied++
	return false
}

// clipCoefficient is what gradients of the given norm are multiplied by so that
// their norm is at most limit (0 = no limit). It is NaN where the norm is not a
// finite number, which skips the step. The 1e-6 is PyTorch's.
func clipCoefficient(norm, limit float64) float64 {
	switch {
	case !ddp.Finite(norm):
		return math.NaN()
	case limit == 0:
		return 1
	}
	return min(1, limit/(norm+1e-6))
}
