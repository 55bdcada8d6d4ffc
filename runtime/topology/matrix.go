package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Matrix is the table of the paths between all GPUs and network cards, with the CPUs
// of each, and a legend.
func (s *System) Matrix() string {
	var list []Node
	for _, g := range s.GPUs {
		list = append(list, g)
	}
	for _, n := range s.NICs {
		list = append(list, n)
	}
	if len(list) == 0 {
		return "no GPU and no network card\n"
	}
	rows := [][]string{{""}}
	for _, n := range list {
		rows[0] = append(rows[0], s.label(n))
	}
	rows[0] = append(rows[0], "NUMA", "Cores")
	seen := map[string]bool{}
	for _, from := range list {
		row := []string{s.label(from)}
		for _, to := range list {
			cell, class := s.cell(from, to)
			seen[class] = true
			row = append(row, cell)
		}
		c := cpuOf(from)
		rows = append(rows, append(row, c.number(), c.Cores))
	}
	var b strings.Builder
	columns(&b, rows)
	b.WriteByte('\n')
	for _, n := range list {
		fmt.Fprintf(&b, "%s: %s\n", s.label(n), describe(n))
	}
	b.WriteByte('\n')
	for _, l := range legend {
		if seen[l.class] {
			fmt.Fprintf(&b, "%-3s  %s\n", l.class, l.text)
		}
	}
	return b.String()
}

var legend = []struct{ class, text string }{
	{"X", "itself"},
	{"NV#", "NVLink, # of them in parallel"},
	{string(NVB), "NVLink by way of another GPU"},
	{string(PIX), "PCIe, through one switch at most"},
	{string(PXB), "PCIe, through several switches, but no CPU"},
	{string(P2C), "the chip-to-chip link to the CPU, then PCIe"},
	{string(PHB), "PCIe, through the CPU of a NUMA node"},
	{string(SYS), "through the link between NUMA nodes"},
	{string(NET), "through the network, to another machine"},
	{string(DIS), "not connected"},
}

// cell is a path as the matrix shows it, and its name in the legend.
func (s *System) cell(from, to Node) (text, class string) {
	p := s.Path(from, to)
	a, isGPU := from.(*GPU)
	b, areGPUs := to.(*GPU)
	switch {
	case from == to:
		return "X", "X"
	case p == NVL && isGPU && areGPUs:
		return fmt.Sprintf("NV%d", s.NVLinks(a, b)), "NV#"
	}
	return string(p), string(p)
}

// label is the short name of a device: GPU0, NIC0.
func (s *System) label(n Node) string {
	switch d := n.(type) {
	case *GPU:
		return fmt.Sprintf("GPU%d", d.Index)
	case *NIC:
		return fmt.Sprintf("NIC%d", slices.Index(s.NICs, d))
	case *CPU:
		return "CPU" + d.number()
	}
	return ""
}

func (c *CPU) number() string {
	if c.Node < 0 {
		return "?"
	}
	return fmt.Sprint(c.Node)
}

func cpuOf(n Node) *CPU {
	switch d := n.(type) {
	case *GPU:
		return d.PCI.CPU
	case *NIC:
		return d.CPU
	}
	return n.(*CPU)
}

// describe says what a device is.
func describe(n Node) string {
	switch d := n.(type) {
	case *GPU:
		name := d.Name
		if name == "" {
			name = "an NVIDIA GPU"
		}
		if d.Compute > 0 {
			name += fmt.Sprintf(", compute capability %d.%d", d.Compute/10, d.Compute%10)
		}
		return name + ", " + d.PCI.BusID
	case *NIC:
		return d.describe()
	}
	return ""
}

func (n *NIC) describe() string {
	parts := []string{n.Name}
	switch {
	case n.Virtual:
		parts = append(parts, "made of software")
	case n.PCI == nil:
		parts = append(parts, "not on PCIe")
	default:
		parts = append(parts, n.PCI.BusID)
	}
	for _, r := range n.RDMA {
		for _, p := range r.Ports {
			text := fmt.Sprintf("port %d: %s %s, %s", p.Number, cmp.Or(p.LinkLayer, "RDMA"), speed(p.Mbps), strings.ToLower(p.State))
			if len(n.RDMA) > 1 {
				text = r.Name + " " + text
			}
			parts = append(parts, text)
		}
	}
	for _, d := range n.Netdevs {
		text := fmt.Sprintf("interface %s: %s", d.Name, d.State)
		if d.Mbps > 0 {
			text += ", " + speed(d.Mbps)
		}
		if d.MTU > 0 {
			text += fmt.Sprintf(", MTU %d", d.MTU)
		}
		if d.Driver != "" {
			text += ", driver " + d.Driver
		}
		parts = append(parts, text)
	}
	if n.unknown() {
		return n.Name + ", a network card"
	}
	if len(n.RDMA) == 0 {
		parts = append(parts, "no RDMA")
	}
	return strings.Join(parts, "; ")
}

func speed(mbps int) string {
	if mbps == 0 {
		return "of unknown speed"
	}
	return fmt.Sprintf("%g Gbit/s", float64(mbps)/1000)
}

// columns writes rows with their cells below each other, two spaces apart.
func columns(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}
