package train

import (
	"context"
	"fmt"
	"io"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/zero"
)

// holding is a parameter's pieces.
type holding struct {
	ranks []zero.Range // what each rank has; From is To where it has nothing
	slot  int          // of this rank's piece, where it has one that is trained
}

func holdingsOf(p *zero.Plan) map[*param.Param]holding {
	list := map[*param.Param]holding{}
	for r := range p.Ranks {
		for _, x := range p.Ranges(r) {
			if list[x.Param].ranks == nil {
				list[x.Param] = holding{ranks: make([]zero.Range, p.Ranks)}
			}
			list[x.Param].ranks[r] = x
		}
	}
	return list
}

// Contents is the whole model's state, which rank 0 gathers a tensor at a time: a
// checkpoint does not say how its state was sharded.
func (s *sharded) Contents() (files []file, together bool) {
	part := func(p *param.Param, of quantity) func(from, to int) store {
		return func(from, to int) store { return inShards{s, zero.Range{Param: p, From: from, To: to}, of} }
	}
	weights, moments := file{name: weightsFile}, file{name: optimizerFile}
	for _, p := range s.j.model.Params() {
		weights.add("", p, part(p, master))
		if !p.Frozen {
			moments.add("m.", p, part(p, firstMoment))
			moments.add("v.", p, part(p, secondMoment))
		}
	}
	return []file{weights, moments}, true
}

// quantity is one of the three that training keeps of a weight.
type quantity int

const (
	master quantity = iota
	firstMoment
	secondMoment
)

// inShards is elements of a parameter that lie on several ranks.
type inShards struct {
	s *sharded
	zero.Range
	of quantity
}

// held is what rank has of them.
func (x inShards) held(rank int) (from, to int) {
	r := x.s.holdings[x.Param].ranks[rank]
	from = max(x.From, r.From)
	return from, max(from, min(x.To, r.To))
}

// moments are this rank's elements [from, to), which it must hold.
func (x inShards) moments(from, to int) []float32 {
	h := x.s.holdings[x.Param]
	t := x.s.slots[h.slot].M
	if x.of == secondMoment {
		t = x.s.slots[h.slot].V
	}
	first := h.ranks[x.s.j.rank()].From
	return t.F32()[from-first : to-first]
}

// upload takes this rank's part of all the elements' bytes.
func (x inShards) upload(ctx context.Context, b []byte) error {
	from, to := x.held(x.s.j.rank())
	if from == to {
		return nil
	}
	values := make([]float32, to-from)
	copy(device.Of(values).Bytes(), b[4*(from-x.From):])
	if x.of == master {
		return x.s.SetWeight(ctx, x.Param, from, values)
	}
	copy(x.moments(from, to), values)
	return nil
}

// download gathers the elements on rank 0, which writes them to w. Every rank calls
// it for the same elements in the same order.
func (x inShards) download(ctx context.Context, w io.Writer) error {
	j := x.s.j
	from, to := x.held(j.rank())
	mine := make([]float32, to-from)
	switch {
	case from == to:
	case x.of == master:
		if err := x.s.ReadWeight(ctx, x.Param, from, mine); err != nil {
			return err
		}
	default:
		if err := j.compute.Synchronize(ctx); err != nil {
			return err
		}
		copy(mine, x.moments(from, to))
	}
	send, receive := make([]int, j.size()), make([]int, j.size())
	send[0] = len(mine)
	var all []float32
	if j.rank() == 0 {
		all = make([]float32, x.To-x.From)
		for r := range receive { // the ranks' pieces follow one another
			from, to := x.held(r)
			receive[r] = to - from
		}
	}
	j.group.AllToAllV(j.host, device.Of(all), device.Of(mine), receive, send, dtype.F32)
	if err := j.host.Synchronize(ctx); err != nil {
		return fmt.Errorf("gathering elements %d to %d of %s on rank 0: %w", x.From, x.To, x.Param.Name, err)
	}
	if j.rank() != 0 {
		return nil
	}
	_, err := w.Write(device.Of(all).Bytes())
	return err
}
