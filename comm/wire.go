package comm

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/tcp"
)

// wire makes the engine that fits where the ranks run.
func (g *Group) wire(ctx context.Context, prefix string) error {
	o := engineOptions{chunk: g.o.Chunk, algo: g.o.Algo, log: g.o.Logger}
	all := make([]int, g.o.Size)
	for i := range all {
		all[i] = i
	}
	switch g.o.Transport {
	case "local":
		o.cost = costLocal
		w := g.addWire("local")
		g.engine = newFlat(newExchange(g.o.hub.net(g.o.Name, g.o.Size).Links(g.o.Rank, &w.traffic), all, g.o.Rank), o)
		return nil
	case "tcp", "auto":
		mesh, err := g.joinTCP(ctx, prefix)
		if err != nil {
			return err
		}
		o.cost = costLoopback
		if len(hostsOf(g.members)) > 1 {
			o.cost = costNetwork
		}
		g.engine = newFlat(newExchange(mesh, all, g.o.Rank), o)
		return nil
	}
	return fmt.Errorf("transport %s is not there yet", g.o.Transport)
}

func (g *Group) joinTCP(ctx context.Context, prefix string) (*tcp.Mesh, error) {
	o := tcp.Options{
		Rank: g.o.Rank, Exchange: exchangeUnder{g.o.Store, prefix}, Interface: g.o.Interface,
		Near: 1, Far: 2, Timeout: g.o.Timeout, Traffic: &g.addWire("tcp").traffic, Logger: g.o.Logger,
		Check: g.check, Lost: func(err error) { g.fail(err) },
	}
	if g.o.Conns > 0 {
		o.Near, o.Far = g.o.Conns, g.o.Conns
	}
	for _, m := range g.members {
		o.Peers = append(o.Peers, tcp.Peer{Host: m.Host, Near: m.Key == g.o.hostKey})
	}
	return tcp.Join(ctx, o)
}

// check compares a message that nobody waits for with what this rank has called.
func (g *Group) check(peer int, h transport.Header) error {
	if h.Kind == transport.Send {
		return nil // these are not numbered with the collectives
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if mine := g.history.collective(h.Seq); mine != nil && mine.Header != h {
		return &transport.MismatchError{Rank: g.o.Rank, Peer: peer, Mine: mine.Header, Theirs: h}
	}
	return nil
}

func (g *Group) addWire(name string) *wire {
	w := &wire{name: name}
	g.wires = append(g.wires, w)
	return w
}

// exchangeUnder is the part of the store that belongs to one group.
type exchangeUnder struct {
	store  Store
	prefix string
}

func (e exchangeUnder) Set(ctx context.Context, key string, value []byte) error {
	return e.store.Set(ctx, e.prefix+key, value)
}

func (e exchangeUnder) Wait(ctx context.Context, key string) ([]byte, error) {
	return e.store.Wait(ctx, e.prefix+key)
}
