package topology

import (
	"slices"
	"strconv"
	"strings"
)

// XML is s in NCCL's format. Devices that are neither GPUs nor network cards are left
// out, and of switches those without such a device.
func (s *System) XML() string {
	top := &element{name: "system"}
	top.set("version", formatVersion)
	if s.name != "" {
		top.set("name", s.name)
	}
	w := &writer{sys: s, of: map[any]*element{}}
	for _, c := range s.CPUs {
		top.subs = append(top.subs, w.cpu(c))
	}
	for _, p := range s.switches() {
		w.pci(p)
	}
	for _, g := range s.GPUs {
		w.gpu(g)
	}
	for _, n := range s.NICs {
		w.nic(n)
	}
	for _, e := range w.of {
		slices.SortStableFunc(e.subs, func(a, b *element) int {
			x, _ := a.value("busid")
			y, _ := b.value("busid")
			return strings.Compare(x, y)
		})
	}
	var b strings.Builder
	top.write(&b, 0)
	return b.String()
}

// writer makes elements of a System.
type writer struct {
	sys  *System
	of   map[any]*element // by *CPU, *PCI
	devs int              // network devices that NCCL may use, so far
}

func (w *writer) cpu(c *CPU) *element {
	e := &element{name: "cpu"}
	w.of[c] = e
	if c.host != "" {
		e.set("host_hash", c.host)
	}
	e.set("numaid", strconv.Itoa(c.Node))
	e.set("affinity", c.Affinity)
	e.set("arch", c.Arch)
	if c.Vendor != "" {
		e.set("vendor", c.Vendor)
		e.set("familyid", strconv.Itoa(c.Family))
		e.set("modelid", strconv.Itoa(c.Model))
	}
	e.attrs = append(e.attrs, c.other...)
	return e
}

// pci is the element of a device, made where it is missing. What is above is there.
func (w *writer) pci(p *PCI) *element {
	if e := w.of[p]; e != nil {
		return e
	}
	e := &element{name: "pci"}
	w.of[p] = e
	e.set("busid", p.BusID)
	for _, a := range []attr{
		{"class", p.Class}, {"vendor", p.Vendor}, {"device", p.Device},
		{"subsystem_vendor", p.SubVendor}, {"subsystem_device", p.SubDevice},
	} {
		if a.value != "" {
			e.attrs = append(e.attrs, a)
		}
	}
	e.set("link_speed", p.LinkSpeed)
	e.set("link_width", strconv.Itoa(p.LinkWidth))
	e.attrs = append(e.attrs, p.other...)
	for _, target := range p.links {
		l := &element{name: "pcilink"}
		l.set("target", target)
		e.subs = append(e.subs, l)
	}
	up := w.of[p.CPU]
	if p.Parent != nil {
		up = w.of[p.Parent]
	}
	up.subs = append(up.subs, e)
	return e
}

func (w *writer) gpu(g *GPU) {
	p := w.pci(g.PCI)
	if g.guessed && g.bare() && strings.HasPrefix(g.PCI.Class, classGPU) {
		return // its class says as much
	}
	e := &element{name: "gpu"}
	if !g.guessed {
		e.set("dev", strconv.Itoa(g.Index))
	}
	if g.Compute > 0 { // NCCL finds out what is missing
		e.set("sm", strconv.Itoa(g.Compute))
	}
	if g.Name != "" {
		e.set("name", g.Name)
	}
	e.attrs = append(e.attrs, g.other...)
	for _, l := range g.NVLinks {
		sub := &element{name: "nvlink"}
		sub.set("target", l.Target)
		sub.set("count", strconv.Itoa(l.Count))
		sub.set("tclass", l.Class)
		e.subs = append(e.subs, sub)
	}
	if g.C2C > 0 {
		sub := &element{name: "c2c"}
		sub.set("bw", strconv.Itoa(g.C2CRate))
		sub.set("count", strconv.Itoa(g.C2C))
		e.subs = append(e.subs, sub)
	}
	p.subs = append(p.subs, e)
}

func (w *writer) nic(n *NIC) {
	e := &element{name: "nic", subs: w.nets(n)}
	up := w.of[n.CPU]
	if n.PCI != nil {
		up = w.pci(n.PCI)
	}
	if len(e.subs) == 0 {
		return
	}
	up.subs = append(up.subs, e)
}
