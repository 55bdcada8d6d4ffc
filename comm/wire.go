package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/local"
	"github.com/gorun-dev/gorun/comm/transport/shm"
	"github.com/gorun-dev/gorun/comm/transport/tcp"
)

// wire makes an engine of host memory that fits where the ranks run. They find each other
// under ex, a place of the engine's own, and what it moves is counted in wires.
func (g *Group) wire(ctx context.Context, ex exchangeUnder, wires *wires) (engine, error) {
	hosts := hostsOf(g.members)
	o := engineOptions{chunk: g.o.Chunk, algo: g.o.Algo, log: g.o.Logger, cost: costLoopback, tuned: &g.tuned, rules: g.o.nccl.families}
	if slices.ContainsFunc(g.members, func(m member) bool { return m.Net != g.members[0].Net }) {
		o.cost = costNetwork
	}
	all := make([]int, g.o.Size)
	for i := range all {
		all[i] = i
	}
	over := func(l links) *flat { return newFlat(newExchange(l, all, g.o.Rank), o) }

	kind := g.o.Transport
	if kind == "auto" {
		switch {
		case g.o.Size == 1:
			kind = "local"
		case len(hosts) == 1:
			kind = "shm"
		case len(hosts) == g.o.Size:
			kind = g.remote()
		}
	}
	if g.o.Algo == TwoLevel && kind != "auto" {
		return nil, fmt.Errorf("algorithm twolevel joins hosts that have several ranks each, and these ranks %v use %s alone: take another, or auto", hosts, kind)
	}
	g.o.Logger.Debug("comm: transport", "group", g.o.Name, "rank", g.o.Rank, "asked", g.o.Transport, "taken", kind, "hosts", hosts)
	switch kind {
	case "local":
		net := local.NewNet(1)
		if g.o.hub != nil {
			net = g.o.hub.net(ex.prefix, g.o.Size)
		}
		o.cost = costLocal
		return over(net.Links(g.o.Rank, &wires.add("local").traffic)), nil
	case "tcp", "rdma":
		mesh, err := g.joinLinks(ctx, kind, ex, hosts, wires)
		if err != nil {
			return nil, err
		}
		return over(mesh), nil
	case "shm":
		if len(hosts) > 1 {
			return nil, fmt.Errorf("transport shm joins ranks of one host, and these are %d hosts: ranks %v. Use auto or tcp", len(hosts), hosts)
		}
		team, err := g.joinTeam(ctx, ex, all, wires)
		if err != nil {
			return nil, err
		}
		return team, nil
	default: // several hosts, and several ranks on some
		var mine []int
		for _, h := range hosts {
			if slices.Contains(h, g.o.Rank) {
				mine = h
			}
		}
		team, err := g.joinTeam(ctx, ex, mine, wires)
		if err != nil {
			return nil, err
		}
		mesh, err := g.joinLinks(ctx, g.remote(), ex, hosts, wires)
		if err != nil {
			return nil, errors.Join(err, team.close())
		}
		return newTwoLevel(hosts, g.o.Rank, team, mesh, over(mesh), o), nil
	}
}

// joinTeam makes the engine of this rank's host.
func (g *Group) joinTeam(ctx context.Context, ex exchangeUnder, ranks []int, wires *wires) (*shared, error) {
	team, err := shm.Join(ctx, shm.Options{
		Rank: slices.Index(ranks, g.o.Rank), Size: len(ranks), Ranks: ranks,
		Key: fmt.Sprintf("shm/%d", ranks[0]), Exchange: ex, Timeout: g.o.Timeout,
	})
	if err != nil {
		return nil, fmt.Errorf("%w. If this host cannot share memory, use transport tcp", err)
	}
	return &shared{team: team, traffic: &wires.add("shm").traffic}, nil
}

func (g *Group) joinTCP(ctx context.Context, ex exchangeUnder, wires *wires) (*tcp.Mesh, error) {
	o := tcp.Options{
		Rank: g.o.Rank, Exchange: ex, Interface: g.o.Interface,
		Near: 1, Far: 2, Timeout: g.o.Timeout, Traffic: &wires.add("tcp").traffic, Logger: g.o.Logger,
		Check: g.check, Lost: func(err error) { g.fail(err) },
	}
	var err error
	if o.FirstPort, o.LastPort, err = ParsePorts(g.o.Ports); err != nil {
		return nil, err
	}
	o.Near, o.Far = g.o.nccl.connections(o.Near), g.o.nccl.connections(o.Far)
	if g.o.Conns > 0 {
		o.Near, o.Far = g.o.Conns, g.o.Conns
	}
	near := true
	for _, m := range g.members {
		o.Peers = append(o.Peers, tcp.Peer{Host: m.Host, Near: m.Net == g.o.netKey})
		near = near && m.Net == g.o.netKey
	}
	if text := g.o.nccl.socket; text != "" {
		if o.Interface, err = g.interfaceFor(text, near); err != nil {
			return nil, err
		}
	}
	return tcp.Join(ctx, o)
}

// check compares a message that nobody waits for yet with what this rank has called.
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
