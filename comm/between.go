package comm

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/topology"
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
	if o.Transport != "rdma" && (o.Transport != "auto" || o.hub != nil) {
		return
	}
	if devices, err := os.ReadDir("/sys/class/infiniband"); o.verbs == nil && (err != nil || len(devices) == 0) {
		me.NoRDMA = "this host has no RDMA device"
		return
	}
	if o.near == nil {
		near, err := rdma.Nearest(o.verbs, o.RDMA, o.spot())
		if err != nil {
			me.NoRDMA = err.Error()
			return
		}
		o.near = &near
	}
	me.RDMA = *o.near
}

// spot is where this rank is on its host.
func (o *Options) spot() rdma.Spot {
	unknown := func(what string, err error) rdma.Spot { return rdma.Spot{Why: fmt.Sprintf("%s: %v", what, err)} }
	s, err := topology.ReadWith(cmp.Or(o.TopoFile, os.Getenv("NCCL_TOPO_FILE")), "/", nil)
	if err != nil {
		return unknown("what this host is made of is not known", err)
	}
	if o.gpu != nil {
		bus, err := o.gpu.BusID()
		if err != nil {
			return unknown("where the GPU is, is not known", err)
		}
		return spotOfGPU(s, bus)
	}
	cores, err := affinity()
	if err != nil {
		return unknown("on which cores this process may run is not known", err)
	}
	return spotOfCores(s, cores)
}

func spotOfGPU(s *topology.System, bus string) rdma.Spot {
	g := s.GPU(bus)
	if g == nil {
		return rdma.Spot{Why: fmt.Sprintf("where GPU %s is, /sys does not show", bus)}
	}
	return rdma.Spot{System: s, Of: g, Why: "GPU " + g.PCI.BusID}
}

// spotOfCores is the NUMA node that has all cores on which the process may run.
func spotOfCores(s *topology.System, cores []int) rdma.Spot {
	if len(s.CPUs) == 1 {
		return rdma.Spot{Why: "the rank has no GPU, and the host one NUMA node"}
	}
	node := s.NodeOf(cores)
	if node == nil {
		return rdma.Spot{Why: "the rank has no GPU, and its process may run on several NUMA nodes"}
	}
	return rdma.Spot{System: s, Of: node, Why: fmt.Sprintf("NUMA node %d, to which the process is bound", node.Node)}
}

// affinity is the cores on which the process may run, as its first thread has them.
func affinity() (cores []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	for c := range 64 * len(set) {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores, nil
}

// remote is the transport between hosts that auto takes: rdma where all ranks have it.
func (g *Group) remote() string {
	with := slices.IndexFunc(g.members, func(m member) bool { return len(m.RDMA.Ports) > 0 })
	without := slices.IndexFunc(g.members, func(m member) bool { return len(m.RDMA.Ports) == 0 })
	level := slog.LevelDebug // it is nothing special to have no such device
	if g.o.Rank == 0 && with >= 0 {
		level = slog.LevelInfo
	}
	say := func(taken, why string) string {
		g.o.Logger.Log(context.Background(), level, "comm: between hosts", "group", g.o.Name, "taken", taken, "why", why)
		return taken
	}
	if without < 0 {
		return say("rdma", "all ranks have it")
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
		Check: g.check, Lost: func(err error) { g.fail(err) }, API: g.o.verbs, Sys: g.o.sys}
	for _, m := range g.members {
		o.Hosts = append(o.Hosts, m.Host)
	}
	o.Port = g.port(hosts)
	g.tellPort(o.Port, wires)
	mesh, err := rdma.Join(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%w. Without RDMA: comm.transport tcp", err)
	}
	return mesh, nil
}

// port is the one that this rank takes: its share of those that are near to the ranks of
// its host. It is empty where there is none; rdma.Join says why.
func (g *Group) port(hosts [][]int) string {
	for _, ranks := range hosts {
		var near []rdma.Near
		for _, r := range ranks {
			near = append(near, g.members[r].RDMA)
		}
		if i := slices.Index(ranks, g.o.Rank); i >= 0 {
			return rdma.Share(near)[i]
		}
	}
	return ""
}

// tellPort logs the choice: of the group itself, and not for its parts and for what of it
// moves GPU memory, which make the same one. Where there is none, rdma.Join's error says it.
func (g *Group) tellPort(port string, wires *wires) {
	if port == "" {
		return
	}
	level := slog.LevelInfo
	if g.o.tuned != nil || wires != &g.wires {
		level = slog.LevelDebug
	}
	near := g.members[g.o.Rank].RDMA
	g.o.Logger.Log(context.Background(), level, "comm: RDMA port", "group", g.o.Name, "rank", g.o.Rank, "host", g.o.Host,
		"port", port, "path", cmp.Or(string(near.Path), "unknown"), "why", near.Why)
}

// alloc returns n bytes, zeroed, that the links move fastest.
func (f *flat) alloc(n int) ([]byte, error) {
	if a, ok := f.x.links.(allocator); ok {
		return a.Alloc(n)
	}
	return make([]byte, n), nil // others copy from any memory
}
