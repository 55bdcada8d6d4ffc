package comm

import (
	"github.com/gorun-dev/gorun/comm/dma"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// order keeps work in its order that is enqueued on different streams.
type order struct {
	stream *cuda.Stream // of the work before
	end    *cuda.Event  // of that work, nil where it has a mark
	mark   dma.Mark
}

// precede makes work on s come behind the work before.
func (o *order) precede(s *cuda.Stream) {
	switch {
	case o.stream == nil || o.stream == s:
	case o.end != nil:
		s.Wait(o.end)
	default:
		o.mark.Precede(s)
	}
}

// is makes work that ends at an event or has a mark the one before.
func (o *order) is(s *cuda.Stream, end *cuda.Event, m dma.Mark) {
	if o.end != nil {
		o.end.Release()
	}
	*o = order{s, end, m}
}

// behind is what the call has to be behind: collectives behind collectives, and what
// moves between two ranks in one direction behind its like, and behind nothing else, for
// the ranks may make these calls in different orders.
func (b *byPeers) behind(c *call) orders {
	switch {
	case c.Kind == transport.Send && c.peer == int(c.Root):
		return orders{&b.sends[c.peer]}
	case c.Kind == transport.Send:
		return orders{&b.recvs[c.peer]}
	case c.sendCounts == nil:
		return orders{&b.last}
	}
	var all orders
	for p := range b.size {
		if p != b.rank {
			all = append(all, &b.sends[p], &b.recvs[p])
		}
	}
	return all
}

// orders is several orders that work is in.
type orders []*order

// on enqueues work on s behind what was enqueued before, and returns the place behind it.
func (all orders) on(s *cuda.Stream, enqueue func() error) (*cuda.Event, error) {
	for _, o := range all {
		o.precede(s)
	}
	end, err := placed(s, enqueue())
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		o.is(s, end.Hold(), dma.Mark{})
	}
	return end, nil
}
