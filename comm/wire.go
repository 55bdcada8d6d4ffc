package comm

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport/local"
)

// wire makes the engine that fits where the ranks run.
func (g *Group) wire(ctx context.Context, prefix string) error {
	o := engineOptions{chunk: g.o.Chunk, algo: g.o.Algo, log: g.o.Logger}
	all := make([]int, g.o.Size)
	for i := range all {
		all[i] = i
	}
	w := g.addWire(g.o.Transport)
	switch g.o.Transport {
	case "local":
		o.cost = costLocal
		g.engine = newFlat(newExchange(g.o.hub.net(g.o.Name, g.o.Size).Links(g.o.Rank, &w.traffic), all, g.o.Rank), o)
		return nil
	}
	return fmt.Errorf("transport %s is not there yet", g.o.Transport)
}

func (g *Group) addWire(name string) *wire {
	w := &wire{name: name}
	g.wires = append(g.wires, w)
	return w
}

var _ links = (*local.Links)(nil)
