package train

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// optimizer is AdamW: clipping by the global norm, and a step that changes nothing
// where the norm or the loss is not finite.
type optimizer struct {
	c config.Train
	// applied counts the steps that changed the weights: the bias correction of
	// the moments runs on it.
	applied int
}

// step enqueues the clipping and the update of every slot on s, behind the reduction
// of the gradients and of the loss, and behind the norm over all ranks.
func (o *optimizer) step(s device.Stream, ops operations, slots []adamw.Slot, x scalars, lr float64) {
	ops.Clip(s, x.coef, x.norm2, x.lossSum, o.c.MaxGradNorm)
	ops.AdamW(s, slots, adamw.Hyper{
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
	sums    tensor.Tensor // f64[2]: lossSum and norm2, where both are summed over the ranks at once
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
	x.sums = x.dev.Rows(1, 3)
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
