package comm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
)

// shownCall is a call as the first rank that makes it leaves it in the store:
//
//	<group>/call/<seq>               of a collective
//	<group>/call/<from>-<to>/<seq>   of a Send and its Recv
type shownCall struct {
	Rank int
	Call transport.Header
	How  string // see gpu.how
}

// compare holds a call that is about to be made, in the way that how tells, against
// what the first rank calls that has got so far.
func (g *Group) compare(c *call, how string) error {
	key := fmt.Sprintf("call/%d", c.wire.Seq)
	if c.Kind == transport.Send {
		from, to := g.o.Rank, c.peer
		if c.peer != int(c.Root) { // a Recv, as the sender knows it
			from, to = to, from
		}
		key = fmt.Sprintf("call/%d-%d/%d", from, to, c.wire.Seq)
	}
	mine, err := json.Marshal(shownCall{g.o.Rank, c.wire, how})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.o.Timeout)
	defer cancel()
	there, first, err := g.o.Store.CompareAndSet(ctx, g.alarm.prefix+key, nil, mine)
	if err != nil {
		return g.explain(c, fmt.Errorf("the call cannot be compared with the other ranks': %w", err))
	}
	if first {
		return nil
	}
	var theirs shownCall
	if err := json.Unmarshal(there, &theirs); err != nil {
		return g.explain(c, fmt.Errorf("another rank's call in the store is unreadable (%q): %w", there, err))
	}
	if theirs.Call != c.wire {
		return &transport.MismatchError{Rank: g.o.Rank, Peer: theirs.Rank, Mine: c.wire, Theirs: theirs.Call}
	}
	if theirs.How != how {
		return g.explain(c, fmt.Errorf("this rank makes it by %s, and rank %d by %s: give the same place of memory from Alloc on all ranks, or other memory on all", how, theirs.Rank, theirs.How))
	}
	return nil
}
