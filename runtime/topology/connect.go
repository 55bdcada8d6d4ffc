package topology

import (
	"slices"
	"strings"
)

// connect makes the graph of s, whose devices are complete.
func (s *System) connect() {
	g := &graph{of: map[any]int{}}
	s.graph = g
	for _, c := range s.CPUs {
		g.add(c, cpuVertex)
	}
	for _, p := range s.switches() {
		g.join(p, g.addSwitch(p), p)
	}
	for _, x := range s.GPUs {
		g.join(x.PCI, g.add(x, gpuVertex), x.PCI)
	}
	for _, n := range s.NICs {
		v := g.add(n, nicVertex)
		if n.PCI != nil {
			g.join(n.PCI, v, n.PCI)
		} else {
			g.both(v, g.of[n.CPU], pix, localRate)
		}
	}
	s.joinNVLinks()
	s.joinChips()
	s.joinCPUs()
	g.routes = make([][]route, len(g.vertices))
	for v := range g.vertices {
		g.routes[v] = g.from(v)
	}
	s.limitByNetworks()
}

// switches are all PCI switches above GPUs and network cards, upper before lower.
func (s *System) switches() []*PCI {
	var list []*PCI
	var visit func(*PCI)
	visit = func(p *PCI) {
		if p == nil || slices.Contains(list, p) {
			return
		}
		visit(p.Parent)
		list = append(list, p)
	}
	for _, x := range s.GPUs {
		visit(x.PCI.Parent)
	}
	for _, n := range s.NICs {
		if n.PCI != nil {
			visit(n.PCI.Parent)
		}
	}
	return list
}

func (g *graph) add(device any, k kind) int {
	v := len(g.vertices)
	g.vertices = append(g.vertices, vertex{kind: k})
	g.of[device] = v
	return v
}

// addSwitch makes the vertex of a switch, or takes that of the switch above where
// both are one: large Broadcom switches look like two levels, and are not.
func (g *graph) addSwitch(p *PCI) int {
	if up := p.Parent; up != nil && !merged(up) && merged(p) {
		g.of[p] = g.of[up]
		return g.of[up]
	}
	return g.add(p, pciVertex)
}

// merged says that p is a lower half of the switch above it.
func merged(p *PCI) bool {
	if p.Parent == nil {
		return false
	}
	up := broadcom(p.Parent, 0)
	return up != 0 && up == broadcom(p, 1) && !merged(p.Parent)
}

// broadcom is the PCIe generation of a Broadcom switch that shows itself as two
// levels, of which p is one; 0 of anything else.
func broadcom(p *PCI, level int) int {
	if p.Vendor != "0x1000" {
		return 0
	}
	switch {
	case p.Device == "0xc010" && p.SubVendor == "0x1000" && strings.HasPrefix(p.SubDevice, "0xa0"):
		return 4
	case p.Device == "0xc030" && p.SubVendor == "0x1000" && strings.HasPrefix(p.SubDevice, []string{"0x0", "0x1"}[level]) && len(p.SubDevice) == len("0x0000"):
		return 5
	}
	return 0
}

// join links the vertex v of device p to what is above p.
func (g *graph) join(p *PCI, v int, device *PCI) {
	up := g.of[any(p.CPU)]
	if p.Parent != nil {
		up = g.of[p.Parent]
	}
	if up != v { // a switch that is one with that above
		g.both(v, up, pix, device.rate())
	}
}

func (g *graph) both(a, b, class int, gbps float64) {
	g.link(a, b, class, gbps)
	g.link(b, a, class, gbps)
}

// link adds up what leads to the same place by the same means.
func (g *graph) link(from, to, class int, gbps float64) {
	list := g.vertices[from].links
	for i := range list {
		if list[i].to == to && list[i].class == class {
			list[i].gbps += gbps
			return
		}
	}
	g.vertices[from].links = append(list, link{to, class, gbps})
}

func (s *System) joinNVLinks() {
	g, nvSwitch := s.graph, -1
	for _, x := range s.GPUs {
		v := g.of[x]
		for _, l := range x.NVLinks {
			rate := float64(l.Count) * nvlinkRate(x.Compute)
			switch {
			case strings.HasPrefix(l.Class, classGPU):
				if peer := s.GPU(l.Target); peer != nil {
					g.link(v, g.of[peer], nvl, rate) // the peer has a link of its own
				}
			case l.Class == classCPU:
				g.both(v, g.of[x.PCI.CPU], nvl, rate)
			default: // all switches together are one
				if nvSwitch < 0 {
					nvSwitch = g.add(nvSwitchKey{}, nvSwitchVertex)
				}
				g.both(v, nvSwitch, nvl, rate)
			}
		}
	}
}

type nvSwitchKey struct{}

func (s *System) joinChips() {
	for _, x := range s.GPUs {
		if x.C2C > 0 {
			s.graph.both(s.graph.of[x], s.graph.of[x.PCI.CPU], c2c, float64(x.C2C*x.C2CRate)/1000)
		}
	}
	for _, p := range s.switches() {
		for _, target := range p.links {
			for _, q := range s.switches() {
				if q.BusID == target && s.graph.of[p] != s.graph.of[q] {
					s.graph.link(s.graph.of[p], s.graph.of[q], loc, localRate)
				}
			}
		}
	}
}

func (s *System) joinCPUs() {
	for _, a := range s.CPUs {
		for _, b := range s.CPUs {
			if a != b && a.host == b.host {
				s.graph.link(s.graph.of[a], s.graph.of[b], sys, a.interRate())
			}
		}
	}
}
