package param

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Replica holds a whole copy of a model's parameters. It is the Weights of one
// rank under plain data parallelism: Use and Done need to do nothing.
type Replica struct {
	weights map[*Param]tensor.Tensor
}

// NewReplica allocates zeroed weights for params on d.
func NewReplica(d device.Device, params []*Param) (*Replica, error) {
	r := &Replica{weights: make(map[*Param]tensor.Tensor, len(params))}
	for _, p := range params {
		w, err := tensor.Alloc(d, p.DType, p.Shape...)
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		r.weights[p] = w
	}
	return r, nil
}

func (r *Replica) Use(int)  {}
func (r *Replica) Done(int) {}

func (r *Replica) Weight(p *Param) tensor.Tensor {
	w, ok := r.weights[p]
	if !ok {
		panic("param: " + p.Name + " is not of this replica")
	}
	return w
}
