package train

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// gradients is where the reduced gradients lie.
type gradients interface {
	Grad(p *param.Param) tensor.Tensor
}

// optimizer is AdamW over a replica: clipping by the global norm, and a step
// that changes nothing where the norm or the loss is not finite.
type optimizer struct {
	c      config.Train
	all    []*param.Param
	params []*param.Param // trainable
	slots  map[*param.Param]adamw.Slot
	list   []adamw.Slot // of a step, made anew in each
	// applied counts the steps that changed the weights: the bias correction of
	// the moments runs on it.
	applied int
}

// newOptimizer allocates the moments, and master weights in f32 where the model
// computes in another type.
func newOptimizer(d device.Device, c config.Train, params []*param.Param, w *param.Replica) (*optimizer, error) {
	o := &optimizer{c: c, all: params, slots: map[*param.Param]adamw.Slot{}}
	var rounded []*param.Param
	for _, p := range params {
		o.slots[p] = adamw.Slot{W: w.Weight(p), Decay: !p.NoDecay}
		if !p.Frozen {
			o.params = append(o.params, p)
		}
		if p.DType != dtype.F32 {
			rounded = append(rounded, p)
		}
	}
	for _, x := range []struct {
		what   string
		params []*param.Param
		set    func(s *adamw.Slot, t tensor.Tensor)
	}{
		{"master weights", rounded, func(s *adamw.Slot, t tensor.Tensor) { s.Master = t }},
		{"first moments", o.params, func(s *adamw.Slot, t tensor.Tensor) { s.M = t }},
		{"second moments", o.params, func(s *adamw.Slot, t tensor.Tensor) { s.V = t }},
	} {
		if len(x.params) == 0 {
			continue
		}
		list, err := tensor.Pack(d, dtype.F32, param.Shapes(x.params))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.what, err)
		}
		for i, p := range x.params {
			s := o.slots[p]
			x.set(&s, list[i])
			o.slots[p] = s
		}
	}
	return o, nil
}

// master is p's weight in f32.
func (o *optimizer) master(p *param.Param) tensor.Tensor {
	if s := o.slots[p]; !s.Master.None() {
		return s.Master
	}
	return o.slots[p].W
}

// roundMasters makes the weights that the model computes with from their masters.
func (o *optimizer) roundMasters(s device.Stream, ops operations) {
	for _, p := range o.all {
		if t := o.slots[p]; !t.Master.None() {
			ops.Copy(s, t.W, t.Master)
		}
	}
}

// step enqueues the clipping and the update of every weight on s, behind the
// reduction of the gradients and of the loss, and behind the norm: see job.addNorm.
func (o *optimizer) step(s device.Stream, ops operations, g gradients, x scalars, lr float64) {
	ops.Clip(s, x.coef, x.norm2, x.lossSum, o.c.MaxGradNorm)
	o.list = o.list[:0]
	for _, p := range o.params {
		t := o.slots[p]
		if t.G = g.Grad(p); !t.G.None() { // else no rank used the parameter in this step
			o.list = append(o.list, t)
		}
	}
	ops.AdamW(s, o.list, adamw.Hyper{
		LR: lr, Beta1: o.c.Betas[0], Beta2: o.c.Betas[1], Eps: o.c.Eps, WeightDecay: o.c.WeightDecay, Step: o.applied + 1, Scale: x.coef,
	})
}

// finish counts the step, unless its norm or loss was not finite and it was
// skipped.
func (o *optimizer) finish(coef float64) (skipped bool) {
	if math.IsNaN(coef) {
		return true
	}
	o.applied++
	return false
}

// scalars are the numbers of a step, f64[1] each, in one piece of the device's
// memory, and their copy on the host, which is of the last step that was read.
type scalars struct {
	loss    tensor.Tensor // the sum over this rank's targets; complete behind Backward, where the model trains
	lossSum tensor.Tensor // the same over all ranks
	norm2   tensor.Tensor // the square of the gradients' norm
	coef    tensor.Tensor // what clipping multiplies by; NaN where the norm or the loss is not finite

	dev, host tensor.Tensor // f64[4]
}

func newScalars(d device.Device) (x scalars, err error) {
	if x.dev, err = tensor.Alloc(d, dtype.F64, 4); err != nil {
		return x, err
	}
	x.host = x.dev
	if d.Kind() != device.CPU {
		buf, err := d.AllocHost(x.dev.Buf.Len())
		if err != nil {
			return x, err
		}
		x.host = tensor.New(buf, dtype.F64, 4)
	}
	for i, t := range []*tensor.Tensor{&x.loss, &x.lossSum, &x.norm2, &x.coef} {
		*t = x.dev.Rows(i, i+1)
	}
	return x, nil
}

// read copies the numbers to the host; readings has them once s has passed.
func (x scalars) read(s device.Stream) {
	if !x.dev.Buf.OnHost() {
		s.Copy(x.host.Buf, x.dev.Buf)
	}
}

// readings is what read copied.
func (x scalars) readings() (loss, lossSum, norm, coef float64) {
	v := x.host.F64()
	return v[0], v[1], math.Sqrt(v[2]), v[3]
}
