package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// RDMADevice is one below /sys/class/infiniband.
type RDMADevice struct {
	Name  string     `json:"name"`
	PCI   string     `json:"pci,omitempty"`
	Verbs string     `json:"verbs,omitempty"` // its file in /dev/infiniband; "" where the kernel has none
	Ports []RDMAPort `json:"ports"`
}

// RDMAPort is a port of one.
type RDMAPort struct {
	Number    int    `json:"number"`
	State     string `json:"state"`      // as the kernel has it: "4: ACTIVE"
	LinkLayer string `json:"link_layer"` // Ethernet or InfiniBand
	Rate      string `json:"rate"`       // "100 Gb/sec (4X EDR)"
	GIDs      []GID  `json:"gids"`
}

// GID is an address of a port.
type GID struct {
	Index  int        `json:"index"`
	Addr   netip.Addr `json:"addr"` // an IPv4 address where it holds one
	Type   string     `json:"type"` // IB/RoCE v1, or RoCE v2
	Netdev string     `json:"netdev,omitempty"`
}

func (g GID) String() string {
	return fmt.Sprintf("%d: %s, %s, %s", g.Index, g.Addr, g.Type, g.Netdev)
}

// active says whether the port carries traffic.
func (p RDMAPort) active() bool { return strings.HasSuffix(p.State, "ACTIVE") }

// ethernet says whether it is one of RoCE, whose address has to be chosen.
func (p RDMAPort) ethernet() bool { return p.LinkLayer == "Ethernet" }

// best is the address that a connection should take: RoCE v2 with IPv4, not link-local,
// else RoCE v2 with a global IPv6 address.
func (p RDMAPort) best() (GID, bool) {
	for _, fits := range []func(netip.Addr) bool{
		func(a netip.Addr) bool { return a.Is4() && a.IsGlobalUnicast() },
		func(a netip.Addr) bool { return a.Is6() && a.IsGlobalUnicast() },
	} {
		for _, g := range p.GIDs {
			if g.Type == roceV2 && fits(g.Addr) {
				return g, true
			}
		}
	}
	return GID{}, false
}

const roceV2 = "RoCE v2"

// summary is the device without what differs from host to host anyway.
func (d RDMADevice) summary() string {
	var ports []string
	for _, p := range d.Ports {
		_, state, _ := strings.Cut(p.State, ": ")
		ports = append(ports, strings.Join([]string{p.LinkLayer, p.Rate, state}, " "))
	}
	return fmt.Sprintf("%s (%s)", d.Name, strings.Join(ports, ", "))
}

// hasRDMA says whether there is an RDMA device.
func (m *Machine) hasRDMA() (bool, error) {
	devices, err := m.list("sys/class/infiniband")
	return len(devices) > 0, err
}

// rdmaDevices reads all of them.
func (m *Machine) rdmaDevices() ([]RDMADevice, error) {
	names, err := m.list("sys/class/infiniband")
	if err != nil {
		return nil, err
	}
	var out []RDMADevice
	for _, name := range names {
		d := RDMADevice{Name: name, PCI: m.pciOf("sys/class/infiniband", name)}
		if d.Verbs, err = m.verbsOf(name); err != nil {
			return nil, err
		}
		ports, err := m.list("sys/class/infiniband", name, "ports")
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			port, err := m.rdmaPort(name, p)
			if err != nil {
				return nil, err
			}
			d.Ports = append(d.Ports, port)
		}
		out = append(out, d)
	}
	return out, nil
}

// verbsOf finds the character device of an RDMA device.
func (m *Machine) verbsOf(device string) (string, error) {
	all, err := m.list("sys/class/infiniband_verbs")
	if err != nil {
		return "", err
	}
	for _, name := range all {
		if is, err := m.text("sys/class/infiniband_verbs", name, "ibdev"); err == nil && is == device {
			return name, nil
		}
	}
	return "", nil
}

func (m *Machine) rdmaPort(device, port string) (p RDMAPort, err error) {
	dir := "sys/class/infiniband/" + device + "/ports/" + port
	if p.Number, err = strconv.Atoi(port); err != nil {
		return p, fmt.Errorf("/%s: %w", dir, err)
	}
	if p.State, err = m.text(dir, "state"); err != nil {
		return p, err
	}
	if p.LinkLayer, err = m.text(dir, "link_layer"); err != nil {
		return p, err
	}
	if p.Rate, err = m.text(dir, "rate"); err != nil {
		return p, err
	}
	gids, err := m.list(dir, "gids")
	if err != nil {
		return p, err
	}
	for _, index := range gids {
		g, ok, err := m.gid(dir, index)
		if err != nil {
			return p, err
		}
		if ok {
			p.GIDs = append(p.GIDs, g)
		}
	}
	slices.SortFunc(p.GIDs, func(a, b GID) int { return a.Index - b.Index })
	return p, nil
}

// gid reads one entry of a port's table; most are empty, and those that a container
// does not see have no type (EINVAL).
func (m *Machine) gid(dir, index string) (g GID, ok bool, err error) {
	if g.Index, err = strconv.Atoi(index); err != nil {
		return g, false, fmt.Errorf("/%s/gids: %w", dir, err)
	}
	text, err := m.text(dir, "gids", index)
	if err != nil {
		return g, false, err
	}
	if g.Addr, err = netip.ParseAddr(text); err != nil {
		return g, false, fmt.Errorf("/%s/gids/%s: %w", dir, index, err)
	}
	if g.Addr.IsUnspecified() {
		return g, false, nil
	}
	g.Addr = g.Addr.Unmap()
	g.Type, err = m.text(dir, "gid_attrs/types", index)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) {
		return g, false, nil
	}
	if err != nil {
		return g, false, err
	}
	g.Netdev, err = m.text(dir, "gid_attrs/ndevs", index)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrNotExist) {
		return g, false, err
	}
	return g, true, nil
}
