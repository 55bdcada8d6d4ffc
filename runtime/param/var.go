package param

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Var is a parameter whose weight and gradient lie in memory of the program's own: a
// slice, a matrix of another library, memory of a GPU. It is what ddp.Wrap and
// zero.Wrap take.
type Var struct {
	Name string // unique within the model
	// Weight is [any shape] of any floating-point type.
	Weight tensor.Tensor
	// Grad is of Weight's shape. The zero Tensor makes the parameter a frozen one, which
	// has no gradient.
	Grad tensor.Tensor
}

// Slice is a Var over two slices of one length, whose memory it shares. A nil grad
// makes it a frozen one.
func Slice[T float32 | float64](name string, weight, grad []T) Var {
	v := Var{Name: name, Weight: vector(weight)}
	if grad != nil {
		v.Grad = vector(grad)
	}
	return v
}

func vector[T float32 | float64](s []T) tensor.Tensor {
	dt := dtype.F32
	if _, ok := any(s).([]float64); ok {
		dt = dtype.F64
	}
	return tensor.New(device.Of(s), dt, len(s))
}

// Describe lists the parameters that vars are, in their order. It fails where a
// variable has no weight or no name, is of a type that is no floating-point one, or has
// a gradient of another shape than its weight. Errors begin with asker.
func Describe(asker string, vars []Var) ([]*Param, error) {
	params := make([]*Param, len(vars))
	for i, v := range vars {
		switch {
		case v.Name == "":
			return nil, fmt.Errorf("%s: variable %d of %d has no name: errors, checks and checkpoints go by it", asker, i, len(vars))
		case v.Weight.None() || v.Weight.Numel() == 0:
			return nil, fmt.Errorf("%s: %s has no weight, or one of no elements", asker, v.Name)
		case !v.Weight.DType.Float() || !v.Grad.None() && !v.Grad.DType.Float():
			return nil, fmt.Errorf("%s: %s has weight %s and gradient %s: both must be floating-point numbers", asker, v.Name, v.Weight, v.Grad)
		case !v.Grad.None() && v.Grad.Numel() != v.Weight.Numel():
			return nil, fmt.Errorf("%s: %s has weight %s and gradient %s: they must have as many elements", asker, v.Name, v.Weight, v.Grad)
		}
		params[i] = &Param{Name: v.Name, Shape: v.Weight.Shape, DType: v.Weight.DType, Frozen: v.Grad.None()}
	}
	return params, nil
}
