package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// verbs looks at RDMA devices: whether they can be opened, whether their ports are up,
// and which addresses (GIDs) these have.
type verbs struct{}

func (verbs) name() string { return "rdma" }

func (c verbs) look(_ context.Context, m *Machine) ([]Finding, error) {
	devices, err := m.rdmaDevices()
	if err != nil {
		return nil, err
	}
	out, err := c.driverless(m, devices)
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		if len(out) > 0 {
			return out, nil
		}
		return nil, errors.New("no RDMA device, and no card that is known to be one")
	}
	if m.library("libibverbs") == "" {
		out = append(out, Finding{
			Severity: Warning, Where: Where{Device: devices[0].Name},
			What:     "there is an RDMA device, and no libibverbs to use it with: jobs fall back to TCP",
			Evidence: "libibverbs.so.1 lies in none of the usual folders, nor in LD_LIBRARY_PATH",
			Fix:      "apt-get install libibverbs1 ibverbs-providers (dnf install libibverbs), in the container too",
		})
	}
	anyActive := false
	for _, d := range devices {
		for _, p := range d.Ports {
			anyActive = anyActive || p.active()
		}
	}
	for _, d := range devices {
		out = append(out, c.closed(m, d)...)
		for _, p := range d.Ports {
			if !p.active() {
				out = append(out, c.inactive(d, p, anyActive))
			} else if p.ethernet() {
				out = append(out, c.addressed(m, d, p)...)
			}
		}
	}
	return out, nil
}

// driverless reports cards that no RDMA device belongs to: InfiniBand controllers, and
// those of the vendor whose Ethernet cards all speak RDMA.
func (verbs) driverless(m *Machine, devices []RDMADevice) (out []Finding, err error) {
	const (
		dir        = "sys/bus/pci/devices"
		infiniBand = "0x0207"
		ethernet   = "0x0200"
		mellanox   = "0x15b3"
	)
	all, err := m.list(dir)
	if err != nil {
		return nil, err
	}
	for _, addr := range all {
		if slices.ContainsFunc(devices, func(d RDMADevice) bool { return d.PCI == addr }) {
			continue
		}
		class, err := m.text(dir, addr, "class")
		if err != nil {
			return nil, err
		}
		vendor, err := m.text(dir, addr, "vendor")
		if err != nil {
			return nil, err
		}
		f := Finding{
			Severity: Note, Where: Where{Device: addr},
			What:     "the card can do RDMA, and the kernel has no RDMA device for it",
			Evidence: fmt.Sprintf("PCI class %s, vendor %s; /sys/class/infiniband has: %s", class, vendor, orNone(deviceNames(devices))),
			Fix:      "load the driver: modprobe mlx5_ib ib_uverbs (or the vendor's own); in a container it is the host that needs it",
		}
		switch {
		case strings.HasPrefix(class, infiniBand):
			f.Severity = Warning
		case !strings.HasPrefix(class, ethernet) || vendor != mellanox:
			continue
		}
		out = append(out, f)
	}
	return out, nil
}

// closed reports a device that programs here cannot open.
func (verbs) closed(m *Machine, d RDMADevice) []Finding {
	f := Finding{Severity: Error, Where: Where{Device: d.Name}}
	switch {
	case d.Verbs == "":
		f.What = "the device has no verbs interface: no program can open it"
		f.Evidence = "nothing in /sys/class/infiniband_verbs names " + d.Name
		f.Fix = "modprobe ib_uverbs"
	case m.exists("dev/infiniband", d.Verbs):
		return nil
	case !m.exists("dev/infiniband"):
		f.What = "the hardware is there, and /dev/infiniband is not: no program here can open it, and jobs fall back to TCP or fail"
		f.Evidence = fmt.Sprintf("/sys/class/infiniband/%s is there, /dev/infiniband is not", d.Name)
		f.Fix = "start the container with --device=/dev/infiniband --cap-add=IPC_LOCK (Kubernetes: the RDMA device plugin); on the host modprobe ib_uverbs"
	default:
		f.What = "the device's file is missing: no program here can open it"
		f.Evidence = fmt.Sprintf("/dev/infiniband/%s is not there, others may be", d.Verbs)
		f.Fix = "pass all of /dev/infiniband to the container, or leave the device out (NCCL_IB_HCA=^" + d.Name + ")"
	}
	return []Finding{f}
}

// inactive reports a port that carries nothing: a fault where no other does.
func (verbs) inactive(d RDMADevice, p RDMAPort, anyActive bool) Finding {
	f := Finding{
		Severity: Warning, Where: Where{Device: fmt.Sprintf("%s port %d", d.Name, p.Number)},
		What:     "the port is not active",
		Evidence: fmt.Sprintf("state %s, %s, %s", p.State, p.LinkLayer, p.Rate),
		Fix:      "check the cable and the switch; InfiniBand needs a subnet manager (opensm), RoCE its network interface up",
	}
	if anyActive {
		f.Severity = Note // a card's second port often is unused
	}
	return f
}

// addressed looks at the addresses of a port of RoCE.
func (c verbs) addressed(m *Machine, d RDMADevice, p RDMAPort) []Finding {
	where := Where{Device: fmt.Sprintf("%s port %d", d.Name, p.Number)}
	best, ok := p.best()
	if !ok {
		return []Finding{{
			Severity: Warning, Where: where,
			What:     "the port has no address for RoCE v2 but link-local ones: other hosts cannot be reached through a router, and often not at all",
			Evidence: "GIDs: " + orNone(gidTexts(p.GIDs)),
			Fix:      "give the port's network interface an IPv4 address, and bring it up; the table follows",
		}}
	}
	index, err := strconv.ParseInt(strings.TrimSpace(m.env("NCCL_IB_GID_INDEX")), 0, 32)
	if err != nil || index < 0 { // not set, by rule, or what variables reports
		return nil
	}
	f := Finding{
		Severity: Error, Where: where, Evidence: "GIDs: " + orNone(gidTexts(p.GIDs)),
		Fix: fmt.Sprintf("unset NCCL_IB_GID_INDEX, so that each port's is chosen, or set it to %d", best.Index),
	}
	for _, g := range p.GIDs {
		if g.Index != int(index) {
			continue
		}
		if g.Type == roceV2 && g.Addr.IsGlobalUnicast() {
			return nil
		}
		f.What = fmt.Sprintf("NCCL_IB_GID_INDEX=%d is %s of %s: connections time out (error 12), or stay within a link", index, g.Type, g.Addr)
		return []Finding{f}
	}
	f.What = fmt.Sprintf("NCCL_IB_GID_INDEX=%d is an empty entry of the port's table: connections fail", index)
	return []Finding{f}
}

func gidTexts(list []GID) (out []string) {
	for _, g := range list {
		out = append(out, g.String())
	}
	return out
}

func deviceNames(list []RDMADevice) (out []string) {
	for _, d := range list {
		out = append(out, d.Name)
	}
	return out
}
