package comm

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// place is where in a call an exchange is, for other goroutines to see.
type place struct {
	mu       sync.Mutex // guards what follows
	call     transport.Header
	peer     int // a rank of the group
	messages int
}

// waits notes that the exchange waits for a peer, and for so many messages of it.
func (p *place) waits(call transport.Header, peer, messages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if call != p.call {
		p.call, p.messages = call, 0
	}
	p.peer = peer
	p.messages += messages
}

// in is for whom the exchange waits in a call, nil where it has not come to that.
func (p *place) in(call transport.Header) *Awaited {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.call != call {
		return nil
	}
	return &Awaited{Rank: p.peer, Messages: max(p.messages-1, 0)} // without the one that it waits for
}

// awaits is for whom a call under way on this rank waits. g.mu is held.
func (g *Group) awaits(c underWay) *Awaited {
	if c.gpu {
		if u := g.gpu; len(u.flights) > 0 {
			return u.awaits(u.flights[0])
		}
		return nil
	}
	if c.Kind == transport.Send || c.Kind == transport.Recv {
		return nil // for its peer, and messages of the two are not numbered alike
	}
	return seen(g.engine, c.Header)
}

// seen is for whom an engine of host memory waits in a call, nil where it cannot tell.
func seen(over engine, call transport.Header) *Awaited {
	switch e := over.(type) {
	case *flat:
		return e.x.seen.in(call)
	case *twoLevel:
		if e.lane != nil {
			if at := e.lane.x.seen.in(call); at != nil {
				return at
			}
		}
		return e.all.x.seen.in(call)
	}
	return nil
}

// note is for whom the copies of a call wait, as the GPU's counters last said.
type note struct {
	entry uint64 // the call's, in the history
	at    *Awaited
}

// note looks for whom the copies of the oldest call wait. routineWatch does so now and
// then while a call is slow, for to ask the GPU takes time.
func (u *gpu) note(f *flight) {
	e, ok := u.engine.(*byPeers)
	if !ok || f.algorithm != CopyEngines {
		return
	}
	u.asked = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), rollCall)
	defer cancel()
	rank, said, err := e.team.Awaited(ctx)
	if err != nil {
		u.g.o.Logger.Debug("comm: for whom the copies wait is not known", "rank", u.g.o.Rank, "err", err)
	}
	n := note{entry: f.entry}
	if said {
		n.at = &Awaited{Rank: rank, Messages: -1}
	}
	u.g.mu.Lock()
	u.noted = n
	u.g.mu.Unlock()
}

// awaits is for whom a call waits on the GPU, as far as that is known. g.mu is held.
func (u *gpu) awaits(f *flight) *Awaited {
	engine := u.engine
	if e, ok := engine.(*gpuDirect); ok {
		if f.algorithm == GPUDirect {
			return e.seen.in(f.call)
		}
		engine = e.under
	}
	if e, ok := engine.(*staged); ok && f.call.Kind != transport.Send {
		return seen(e.over, f.call)
	}
	e, ok := engine.(*byPeers)
	switch {
	case !ok:
	case f.algorithm == CopyEngines && u.noted.entry == f.entry:
		return u.noted.at
	case f.algorithm == Kernels || f.algorithm == InPlace:
		if rank, said := e.team.Behind(); said {
			return &Awaited{Rank: rank, Messages: -1}
		}
	}
	return nil
}

// link names what carries a call on GPU memory.
func (u *gpu) link(a Algorithm) string {
	engine := u.engine
	if e, ok := engine.(*byPeers); ok {
		if a != NCCL {
			return string(a) + " between the GPUs of a host"
		}
		engine = e.under
	}
	switch e := engine.(type) {
	case *overNCCL:
		return "NCCL, " + e.comm.Path().String()
	case *staged:
		return e.link()
	case *gpuDirect:
		if a == GPUDirect {
			return e.link()
		}
		return e.under.link()
	}
	return ""
}

// linkTo names what carries host memory between this rank and a peer, or all where
// peer is -1.
func (g *Group) linkTo(peer int) string {
	const memory = "shared memory"
	switch g.engine.(type) {
	case *shared:
		return memory
	case *twoLevel:
		if peer >= 0 && g.members[peer].Key == g.members[g.o.Rank].Key {
			return memory
		}
	}
	var names []string
	for _, w := range g.wires {
		if w.name != "shm" {
			names = append(names, w.name)
		}
	}
	return strings.Join(names, " and ")
}

// waits lists for whom ranks wait in collective seq, those that have received least
// first. all is every rank's position, nil where it did not answer.
func (g *Group) waits(all []*Position, seq uint64, gpu bool) (list []Wait) {
	for r, p := range all {
		if p == nil {
			continue
		}
		at := p.of(gpu)
		if at.Awaits == nil || at.Running == nil || at.Running.Seq != seq || at.Awaits.Rank < 0 || at.Awaits.Rank >= len(g.members) {
			continue
		}
		list = append(list, Wait{r, p.Host, at.Awaits.Rank, g.members[at.Awaits.Rank].Host, at.Awaits.Messages})
	}
	slices.SortStableFunc(list, func(a, b Wait) int { return cmp.Compare(a.Messages, b.Messages) })
	return list
}
