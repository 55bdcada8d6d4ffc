package topology

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// inventory names the network interfaces and RDMA devices of a machine. kernel is
// that of this one, files that of a copy.
type inventory interface {
	netdevs() ([]Netdev, error)  // name, kind, MTU and state alone
	rdmaDevices() []string       // names
	verbs(rdma string) string    // /dev/infiniband/uverbs0; "" if it has none
	rdmaOf(netdev string) string // the RDMA device of an IPoIB interface; "" if it has none
}

const (
	netClass  = "sys/class/net"
	rdmaClass = "sys/class/infiniband"

	// Types of interfaces, as /sys/class/net/*/type has them.
	arphrdInfiniband = 32
	arphrdLoopback   = 772
)

// readNetworks makes the network cards of interfaces and RDMA devices.
func (r *reader) readNetworks(of inventory) {
	netdevs, err := of.netdevs()
	if err != nil {
		r.problem("the kernel does not list network interfaces, so /sys has to: %v", err)
		netdevs, _ = files{r.tree}.netdevs() // has no error
	}
	var unseen []string
	for i := range netdevs {
		d := &netdevs[i]
		r.completeNetdev(d)
		if d.Virtual {
			r.sys.Virtual = append(r.sys.Virtual, *d)
			continue
		}
		var p *PCI
		if d.unseen {
			unseen = append(unseen, d.Name)
		} else {
			p = r.pciOf(netClass, d.Name)
		}
		n := r.card(p)
		n.Netdevs = append(n.Netdevs, *d)
	}
	if len(unseen) > 0 {
		r.problem("the cards of %s: /sys shows the interfaces of another network namespace", strings.Join(unseen, ", "))
	}
	over := r.ipoib(of, netdevs)
	for _, name := range of.rdmaDevices() {
		n := r.card(r.pciOf(rdmaClass, name))
		n.RDMA = append(n.RDMA, r.readRDMA(name, of, over))
		n.Virtual = r.isVirtual(rdmaClass, name)
	}
	for _, n := range r.sys.NICs {
		n.name()
	}
}

// card is the network card at a PCI function, which may have several interfaces and
// RDMA devices. Each device that is not on PCIe has one for itself.
func (r *reader) card(p *PCI) *NIC {
	n := &NIC{PCI: p, CPU: r.sys.CPUs[0]}
	if p != nil {
		for _, old := range r.sys.NICs {
			if old.PCI == p {
				return old
			}
		}
		n.CPU = p.CPU
	}
	r.sys.NICs = append(r.sys.NICs, n)
	return n
}

// isVirtual says that the kernel has an entry of a class under no device.
func (r *reader) isVirtual(class, name string) bool {
	where := r.real(class, name) // sys/devices/virtual/...
	return len(where) > 2 && where[2] == "virtual"
}

func (n *NIC) name() {
	slices.SortFunc(n.RDMA, func(a, b RDMA) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(n.Netdevs, func(a, b Netdev) int { return strings.Compare(a.Name, b.Name) })
	if len(n.RDMA) > 0 {
		n.Name = n.RDMA[0].Name
	} else {
		n.Name = n.Netdevs[0].Name
	}
}

// pciOf is the PCI device behind an entry of a class: the nearest above it, for an
// interface of virtio has a device of its own in between. nil if there is none.
func (r *reader) pciOf(class, name string) *PCI {
	where := r.real(class, name)
	for i := len(where) - 2; i > 0; i-- {
		if isBusID(where[i]) {
			return r.deviceAt(where[:i+1])
		}
	}
	return nil
}

// completeNetdev adds what /sys alone tells.
func (r *reader) completeNetdev(d *Netdev) {
	if d.unseen {
		d.Virtual = d.Kind != "device"
		return
	}
	d.Driver = r.linkName(netClass, d.Name, "device/driver")
	d.Mbps = max(0, r.number(0, netClass, d.Name, "speed"))
	d.Virtual = r.isVirtual(netClass, d.Name)
	if d.Virtual && d.Kind == "device" {
		d.Kind = "virtual"
	}
}

// ipoib maps RDMA devices to their IPoIB interfaces, which no address table of a port
// names.
func (r *reader) ipoib(of inventory, netdevs []Netdev) map[string][]string {
	over := map[string][]string{}
	for _, d := range netdevs {
		if d.unseen || r.number(0, netClass, d.Name, "type") != arphrdInfiniband {
			continue
		}
		if rdma := of.rdmaOf(d.Name); rdma != "" {
			over[rdma] = append(over[rdma], d.Name)
		}
	}
	return over
}

func (r *reader) readRDMA(name string, of inventory, ipoib map[string][]string) RDMA {
	d := RDMA{Name: name, GUID: r.text(rdmaClass, name, "sys_image_guid"), Verbs: of.verbs(name)}
	for _, number := range r.list(rdmaClass, name, "ports") {
		n, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		dir := filepath.Join(rdmaClass, name, "ports", number)
		_, state, _ := strings.Cut(r.text(dir, "state"), ": ") // 4: ACTIVE
		p := Port{Number: n, State: state, LinkLayer: r.text(dir, "link_layer"), Mbps: megabits(r.text(dir, "rate"))}
		for _, slot := range r.list(dir, "gid_attrs/ndevs") { // most slots are empty
			if d := r.text(dir, "gid_attrs/ndevs", slot); d != "" && !slices.Contains(p.Netdevs, d) {
				p.Netdevs = append(p.Netdevs, d)
			}
		}
		for _, d := range ipoib[name] {
			if port := r.number(0, netClass, d, "dev_port"); port == n-1 {
				p.Netdevs = append(p.Netdevs, d)
			}
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return a.Number - b.Number })
	return d
}

// megabits reads a rate such as "400 Gb/sec (4X NDR)", or "2.5 Gb/sec (1X SDR)".
func megabits(rate string) int {
	var gigabits float64
	if _, err := fmt.Sscanf(rate, "%f Gb/sec", &gigabits); err != nil {
		return 0
	}
	return int(gigabits * 1000)
}

// files reads a copy of /sys, and does what kernel does by netlink and rdmamap.
type files struct{ tree }

func (f files) netdevs() ([]Netdev, error) {
	var list []Netdev
	for _, name := range f.list(netClass) {
		if !f.exists(netClass, name, "mtu") {
			continue // bonding_masters
		}
		d := Netdev{Name: name, Kind: "device", MTU: f.number(0, netClass, name, "mtu"), State: f.text(netClass, name, "operstate")}
		for line := range strings.Lines(f.text(netClass, name, "uevent")) {
			if kind, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVTYPE="); ok {
				d.Kind = kind
			}
		}
		if f.number(0, netClass, name, "type") == arphrdLoopback {
			d.Kind = "loopback"
		}
		list = append(list, d)
	}
	return list, nil
}

func (f files) rdmaDevices() []string { return f.list(rdmaClass) }

func (f files) verbs(rdma string) string {
	const class = "sys/class/infiniband_verbs"
	for _, name := range f.list(class) {
		if f.text(class, name, "ibdev") == rdma {
			return "/dev/infiniband/" + name
		}
	}
	return ""
}

// rdmaOf compares the interface's hardware address, which ends in the port's GUID.
func (f files) rdmaOf(netdev string) string {
	address := strings.ReplaceAll(f.text(netClass, netdev, "address"), ":", "")
	for _, name := range f.list(rdmaClass) {
		guid := strings.ReplaceAll(f.text(rdmaClass, name, "node_guid"), ":", "")
		if guid != "" && strings.HasSuffix(address, guid) {
			return name
		}
	}
	return ""
}
