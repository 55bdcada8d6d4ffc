package comm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
)

// allocator is links that move some memory without copying it.
type allocator interface {
	// Alloc returns n bytes of it, zeroed, which are so until Close.
	Alloc(n int) ([]byte, error)
}

// adopter is links to which memory from elsewhere can be given, that they move it
// without copying it. It stays mapped until they are closed.
type adopter interface {
	Adopt(b []byte) error
}

// lookForRDMA says in me what this rank has, where that matters.
func (o *Options) lookForRDMA(me *member) {
	if o.Transport != "auto" && o.Transport != "rdma" || o.hub != nil {
		return
	}
	if devices, err := os.ReadDir("/sys/class/infiniband"); err != nil || len(devices) == 0 {
		me.NoRDMA = "this host has no RDMA device"
		return
	}
	ports, err := rdma.Usable(nil, o.RDMA)
	if err != nil {
		me.NoRDMA = err.Error()
		return
	}
	me.RDMA = ports[0]
}

// remote is the transport between hosts that auto takes: rdma where all ranks have it.
func (g *Group) remote() string {
	with := slices.IndexFunc(g.members, func(m member) bool { return m.RDMA != "" })
	without := slices.IndexFunc(g.members, func(m member) bool { return m.RDMA == "" })
	level := slog.LevelDebug // it is nothing special to have no such device
	if g.o.Rank == 0 && with >= 0 {
		level = slog.LevelInfo
	}
	say := func(taken, why string) string {
		g.o.Logger.Log(context.Background(), level, "comm: between hosts", "group", g.o.Name, "taken", taken, "why", why)
		return taken
	}
	if without < 0 {
		return say("rdma", "all ranks have it; rank 0: "+g.members[0].RDMA)
	}
	m := g.members[without]
	return say("tcp", fmt.Sprintf("rank %d on %s has no RDMA: %s", without, m.Host, m.NoRDMA))
}

// joinLinks makes links of the kind named, tcp or rdma, to all ranks.
func (g *Group) joinLinks(ctx context.Context, kind string, ex exchangeUnder, hosts [][]int, wires *wires) (links, error) {
	if kind == "tcp" {
		return g.joinTCP(ctx, ex, wires)
	}
	o := rdma.Options{Rank: g.o.Rank, Exchange: ex, Settings: g.o.RDMA, Traffic: &wires.add("rdma").traffic, Logger: g.o.Logger,
		Check: g.check, Lost: func(err error) { g.fail(err) }}
	for _, m := range g.members {
		o.Hosts = append(o.Hosts, m.Host)
	}
	for _, h := range hosts {
		o.Place = max(o.Place, slices.Index(h, g.o.Rank))
	}
	mesh, err := rdma.Join(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%w. Without RDMA: comm.transport tcp", err)
	}
	return mesh, nil
}

// alloc returns n bytes, zeroed, that the links move fastest.
func (f *flat) alloc(n int) ([]byte, error) {
	if a, ok := f.x.links.(allocator); ok {
		return a.Alloc(n)
	}
	return make([]byte, n), nil // others copy from any memory
}
