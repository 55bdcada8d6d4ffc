package train

import (
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/zero"
)

// holding is a parameter's piece on this rank.
type holding struct {
	elements     // none where it has no piece
	slot     int // where it is trained
}

func holdingsOf(p *zero.Plan, rank int) map[*param.Param]holding {
	list := map[*param.Param]holding{}
	for _, x := range p.Ranges(rank) {
		list[x.Param] = holding{elements: elements{x.From, x.To}}
	}
	return list
}

// Contents is this rank's shards of what is trained.
func (s *sharded) Contents() []file {
	s.Settle() // weights of f32 are gathered in place, from the masters
	weights, moments := file{kind: weightsKind}, file{kind: optimizerKind}
	for _, p := range s.j.model.Params() {
		if p.Frozen {
			continue
		}
		h := s.holdings[p]
		of := func(t func() tensor.Tensor) func(from, to int) store {
			return func(from, to int) store { return inMemory{s.j, t().Rows(from-h.from, to-h.from)} }
		}
		weights.add("", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].W }))
		moments.add("m.", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].M }))
		moments.add("v.", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].V }))
	}
	return []file{weights, moments}
}
