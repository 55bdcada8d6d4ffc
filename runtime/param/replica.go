package param

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Replica holds a whole copy of a model's parameters. It is the Weights of one
// rank under plain data parallelism: Use and Done need to do nothing.
type Replica struct {
	weights map[*Param]tensor.Tensor
}

// NewReplica allocates zeroed weights for params on d, those of one type in one piece.
// They live as long as d's memory does; the Replica has no Close.
func NewReplica(d device.Device, params []*Param) (*Replica, error) {
	r := &Replica{weights: make(map[*Param]tensor.Tensor, len(params))}
	for _, dt := range dtype.All {
		var of []*Param
		for _, p := range params {
			if p.DType == dt {
				of = append(of, p)
			}
		}
		if of == nil {
			continue
		}
		list, err := tensor.Pack(d, dt, Shapes(of))
		if err != nil {
			return nil, fmt.Errorf("the %s weights of %d parameters: %w", dt, len(of), err)
		}
		for i, p := range of {
			r.weights[p] = list[i]
		}
	}
	return r, nil
}

// Shapes lists the parameters' shapes, which it shares with them.
func Shapes(params []*Param) [][]int {
	list := make([][]int, len(params))
	for i, p := range params {
		list[i] = p.Shape
	}
	return list
}

// Use does nothing: all weights are readable at any time.
func (r *Replica) Use(int) {}

// Done does nothing.
func (r *Replica) Done(int) {}

// Weight is p's weight, shaped p.Shape, of type p.DType, always at the same place. It
// panics for a parameter that NewReplica did not get.
func (r *Replica) Weight(p *Param) tensor.Tensor {
	w, ok := r.weights[p]
	if !ok {
		panic("param: " + p.Name + " is not of this replica")
	}
	return w
}
