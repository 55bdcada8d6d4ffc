package topology

import "slices"

// The graph has a vertex for every device of a System and for its switches. The
// rules by which a route gets its class, and the speeds of links, are NCCL's, so that
// what gorun says is what NCCL does.

type kind int

const (
	cpuVertex kind = iota
	pciVertex
	gpuVertex
	nicVertex
	nvSwitchVertex
)

type vertex struct {
	kind  kind
	links []link
}

// link leads one way. Its class is that of a route which has this link alone.
type link struct {
	to    int
	class int
	gbps  float64 // GB/s
}

// route is the best way between two vertices.
type route struct {
	class int
	gbps  float64 // of its slowest link
	hops  int
}

type graph struct {
	vertices []vertex
	of       map[any]int // by *CPU, *PCI, *GPU, *NIC
	routes   [][]route   // [from][to]
}

// Node is a device between which there are paths: a *CPU, *GPU or *NIC.
type Node interface{ device() }

func (*CPU) device() {}
func (*GPU) device() {}
func (*NIC) device() {}

// localRate is that of links which are never the narrow place.
const localRate = 5000

// from finds the best routes from one vertex to all: by class, then by speed, then
// by length.
func (g *graph) from(base int) []route {
	routes := make([]route, len(g.vertices))
	for i := range routes {
		routes[i].class = dis
	}
	routes[base] = route{class: loc, gbps: localRate}
	for at := []int{base}; len(at) > 0; {
		var next []int
		for _, v := range at {
			for _, l := range g.vertices[v].links {
				class, ok := g.extend(base, v, l, routes[v])
				if !ok {
					continue
				}
				r := route{class, min(routes[v].gbps, l.gbps), routes[v].hops + 1}
				if old := routes[l.to]; r.betterThan(old) {
					routes[l.to] = r
					if !slices.Contains(next, l.to) {
						next = append(next, l.to)
					}
				}
			}
		}
		at = next
	}
	return routes
}

func (r route) betterThan(old route) bool {
	switch {
	case r.class != old.class:
		return r.class < old.class
	case r.gbps != old.gbps:
		return r.gbps > old.gbps
	}
	return r.hops < old.hops
}

// extend is the class of a route that reaches v and goes on along l. GPUs pass
// nothing on but NVLink traffic between two of their neighbours. Network cards have
// no second link to pass anything on by.
func (g *graph) extend(base, v int, l link, so route) (class int, ok bool) {
	here, there := g.vertices[v].kind, g.vertices[l.to].kind
	if v != base && here == gpuVertex && (l.class != nvl || there != gpuVertex || so.hops > 1) {
		return 0, false
	}
	class = l.class
	switch {
	case here == pciVertex && there == pciVertex:
		class = pxb
	case l.class == pix && (here == cpuVertex || there == cpuVertex):
		class = phb
	case v != base && here == gpuVertex && so.class == nvl:
		class = nvb
	}
	return max(class, so.class), true
}

// limitByNetworks lets no path to a network card be faster than its network, and
// sees the paths of Grace's GPUs to their nearest cards.
func (s *System) limitByNetworks() {
	g := s.graph
	for _, n := range s.NICs {
		v, rate := g.of[n], n.rate()
		for u := range g.vertices {
			g.routes[u][v].gbps = min(g.routes[u][v].gbps, rate)
			g.routes[v][u].gbps = min(g.routes[v][u].gbps, rate)
		}
	}
	for _, x := range s.GPUs {
		if x.C2C == 0 {
			continue
		}
		for _, n := range s.local(x) {
			if to := g.routes[g.of[x]][g.of[n]]; to.class == phb {
				g.routes[g.of[x]][g.of[n]].class = p2c
				g.routes[g.of[n]][g.of[x]].class = p2c
			}
		}
	}
}

// Path is the best path between two devices of s, by the wires that there are: what
// the driver or NCCL refuse to use is not left out, see P2P and GPUDirect.
func (s *System) Path(a, b Node) Path {
	from, ok := s.graph.of[a]
	to, ok2 := s.graph.of[b]
	if !ok || !ok2 {
		return DIS
	}
	class := s.graph.routes[from][to].class
	if class == dis && s.host(a) != s.host(b) {
		return NET
	}
	return paths[class]
}

// Rate is how many GB/s the path between two devices carries at best in one
// direction: its slowest part, by the figures that NCCL plans with. 0 where there is
// no path.
func (s *System) Rate(a, b Node) float64 {
	from, ok := s.graph.of[a]
	to, ok2 := s.graph.of[b]
	if !ok || !ok2 {
		return 0
	}
	return s.graph.routes[from][to].gbps
}

func (s *System) host(n Node) string {
	switch d := n.(type) {
	case *CPU:
		return d.host
	case *GPU:
		return d.PCI.CPU.host
	case *NIC:
		return d.CPU.host
	}
	return ""
}
