package train

import (
	"context"

	"github.com/gorun-dev/gorun/runtime/device"
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

// Contents is this rank's shards. Frozen weights, of which every rank has all before
// stage 3, are written in shards all the same.
func (s *sharded) Contents() []file {
	s.Settle() // weights of f32 are gathered in place, from the masters
	weights, moments := file{kind: weightsKind}, file{kind: optimizerKind}
	for _, p := range s.j.model.Params() {
		h := s.holdings[p]
		if p.Frozen {
			has := h.elements
			if s.Plan().Stage < 3 {
				has = elements{0, p.Numel()}
			}
			weights.add("", p, has, h.elements, func(from, _ int) store { return frozen{s, p, from} })
			continue
		}
		of := func(t func() tensor.Tensor) func(from, to int) store {
			return func(from, to int) store { return inMemory{s.j, t().Rows(from-h.from, to-h.from)} }
		}
		weights.add("", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].W }))
		moments.add("m.", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].M }))
		moments.add("v.", p, h.elements, h.elements, of(func() tensor.Tensor { return s.slots[h.slot].V }))
	}
	return []file{weights, moments}
}

// frozen is a weight that is not trained, from the given element on: it has no
// master, and may be of a shorter type than its values in a checkpoint.
type frozen struct {
	s     *sharded
	p     *param.Param
	first int
}

func (x frozen) read(ctx context.Context, from int, dst device.Buffer) error {
	return x.s.ReadWeight(ctx, x.p, x.first+from, device.View[float32](dst))
}

func (x frozen) write(ctx context.Context, from int, b []byte) error {
	values := make([]float32, len(b)/4) // b may not be aligned
	copy(device.Of(values).Bytes(), b)
	return x.s.SetWeight(ctx, x.p, x.first+from, values)
}
