// Package topology knows what a machine is made of, as far as data travels through
// it: NUMA nodes, PCIe switches, GPUs and NVLink between them, network cards.
//
// Local looks at this machine, Read at a copy of its /sys and /proc, and ReadFile
// at a file in NCCL's XML format. Each gives a System, which does not change
// afterwards and may be used by any number of goroutines. Path tells how far two of
// its devices are from each other, in NCCL's words, and NearestNICs which network
// cards a GPU should use.
//
// Speeds are in Gbit/s for networks and GB/s (10^9 bytes) for paths.
package topology

import (
	"cmp"
	"slices"
	"strings"
)

// System is a machine.
type System struct {
	CPUs []*CPU // by number
	GPUs []*GPU // by index
	NICs []*NIC // by PCI address; those without one come last
	// Virtual are the network interfaces that no card stands behind by itself:
	// loopback, bridges, veth, bonds.
	Virtual []Netdev
	// PeerMemory is the kernel module by which network cards reach memory of GPUs
	// (nvidia_peermem, nv_mem, nv_mem_nc), "" where none is loaded. The kernel's
	// dma-buf, the other way, does not need one.
	PeerMemory string
	// Problems are what could not be found out, and why, in sentences.
	Problems []string

	name  string
	pci   []*PCI         // of the XML file: all of them
	p2p   map[[2]int]P2P // by GPU.Index
	graph *graph
}

// CPU is a NUMA node with its cores.
type CPU struct {
	Node     int    // its number; -1 where the system does not tell which one devices belong to
	Cores    string // a list, as 0-31,64-95; "" if not known
	Affinity string // the same as a mask of hexadecimal words, as the kernel writes it
	Arch     string // x86_64 or arm64
	Vendor   string // GenuineIntel, AuthenticAMD; "" on arm64
	Family   int
	Model    int

	host  string // of the XML file: CPUs with another one are of another machine
	other []attr
}

// PCI is a PCIe device, or a switch, which is known by its upstream port. Numbers are
// hexadecimal as in /sys: 0x10de.
type PCI struct {
	BusID                string // 0000:17:00.0
	Class                string // 0x060400 is a bridge
	Vendor, Device       string
	SubVendor, SubDevice string
	LinkSpeed            string // of a lane at best, of the device or the port above, whichever is less: 16.0 GT/s PCIe
	LinkWidth            int    // lanes, likewise; 0 if not known
	// Bridges are the addresses of all ports that lie between the CPU and the device,
	// the root port first. A file does not tell them.
	Bridges []string
	Parent  *PCI // the switch above, nil below the CPU
	CPU     *CPU

	links []string // switches of other sockets that are joined to this one
	other []attr
}

// GPU is an NVIDIA GPU.
type GPU struct {
	Index   int    // the driver's, before CUDA_VISIBLE_DEVICES
	Name    string // NVIDIA H100 80GB HBM3; "" where the driver's library was not asked
	Compute int    // capability, 90 for 9.0; 0 if not known
	PCI     *PCI
	NVLinks []NVLink
	C2C     int // links to the CPU that are no PCIe, on Grace
	C2CRate int // MB/s of each

	other   []attr
	guessed bool // Index is not known, and is the place by address
}

// bare says that nothing is known of g but where it is.
func (g *GPU) bare() bool {
	return g.Name == "" && g.Compute == 0 && g.C2C == 0 && len(g.NVLinks) == 0 && len(g.other) == 0
}

// NVLink is a bundle of links from a GPU to one other device.
type NVLink struct {
	Target string // PCI address; hidden where a virtual machine does not see it
	Class  string // of the target: 0x03... a GPU, 0x068000 a switch, 0x068001 a CPU
	Count  int
}

// isSwitch says that the links lead to NVSwitches, which join all GPUs.
func (l NVLink) isSwitch() bool {
	return !strings.HasPrefix(l.Class, classGPU) && l.Class != classCPU
}

// hidden is how NCCL writes the address of a switch that is not to be seen.
const hidden = "fffffff:ffff:ff"

const (
	classGPU      = "0x03"
	classNIC      = "0x02"
	classNVSwitch = "0x068000"
	classCPU      = "0x068001"
)

// NIC is a network card: a PCI function that holds network interfaces, RDMA
// devices, or both. A card with two ports is often two of them.
type NIC struct {
	Name    string // of the first RDMA device, else of the first interface
	PCI     *PCI   // nil if it is not on PCIe
	CPU     *CPU   // nearest; without PCI the first
	Virtual bool   // no card of its own: Soft-RoCE
	Netdevs []Netdev
	RDMA    []RDMA

	nets []*element // of the XML file
}

// Netdev is a network interface.
type Netdev struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`              // device, or what a virtual one is: veth, bridge, bond, loopback
	Driver  string `json:"driver,omitempty"`  // mlx5_core
	Mbps    int    `json:"mbps,omitempty"`    // 0 where it has no speed, or is down
	MTU     int    `json:"mtu"`               // bytes
	State   string `json:"state"`             // up, down, unknown (as loopback), lowerlayerdown, ...
	Virtual bool   `json:"virtual,omitempty"` // no device stands behind it by itself

	unseen bool // /sys, which shows another network namespace, does not have it
}

// Up says that the interface can carry data, as far as the kernel knows.
func (n Netdev) Up() bool { return n.State == "up" || n.State == "unknown" }

// RDMA is a device of the kernel's RDMA subsystem.
type RDMA struct {
	Name  string `json:"name"`            // mlx5_0
	GUID  string `json:"guid,omitempty"`  // of the card, as 506b:4b03:00cb:9b12; the same on all its ports
	Verbs string `json:"verbs,omitempty"` // /dev/infiniband/uverbs0; "" where programs cannot open it
	Ports []Port `json:"ports"`
}

// Port is a port of an RDMA device.
type Port struct {
	Number    int      `json:"number"`     // from 1
	State     string   `json:"state"`      // ACTIVE, DOWN, INIT, ARMED
	LinkLayer string   `json:"link_layer"` // InfiniBand or Ethernet (RoCE); "" in files of NCCL's
	Mbps      int      `json:"mbps"`       // Mbit/s
	Netdevs   []string `json:"netdevs"`    // interfaces whose addresses it has
}

// Active says that the port can carry data.
func (p Port) Active() bool { return p.State == "ACTIVE" }

// Active says that a port of the card is active, or where it has no RDMA device that
// an interface is up. Of a card whose address alone a file tells it is not known, and
// false.
func (n *NIC) Active() bool {
	if n.active() {
		return true
	}
	return len(n.RDMA) == 0 && slices.ContainsFunc(n.Netdevs, Netdev.Up)
}

// active is for RDMA devices alone.
func (n *NIC) active() bool {
	return slices.ContainsFunc(n.RDMA, func(r RDMA) bool { return slices.ContainsFunc(r.Ports, Port.Active) })
}

// unknown says that nothing but the card's address is known.
func (n *NIC) unknown() bool { return len(n.RDMA) == 0 && len(n.Netdevs) == 0 }

// Mbps is the speed of the card's fastest port that is active, else of any; 0 if not
// known.
func (n *NIC) Mbps() int {
	up, down := 0, 0
	count := func(active bool, mbps int) {
		if active {
			up = max(up, mbps)
		}
		down = max(down, mbps)
	}
	for _, r := range n.RDMA {
		for _, p := range r.Ports {
			count(p.Active(), p.Mbps)
		}
	}
	for _, d := range n.Netdevs {
		count(d.Up(), d.Mbps)
	}
	return cmp.Or(up, down)
}

// BusID is the card's PCI address, "" where it has none.
func (n *NIC) BusID() string {
	if n.PCI == nil {
		return ""
	}
	return n.PCI.BusID
}

// P2P is whether a GPU may reach memory of another directly, as the driver says.
type P2P struct {
	Read, Write string // "ok", or why not
}

// OK says that both directions work.
func (p P2P) OK() bool { return p.Read == "ok" && p.Write == "ok" }

// P2P is what the driver says of a and b. known is false where it was not asked: of a
// machine that was read from a file, or without the driver's library.
func (s *System) P2P(a, b *GPU) (p P2P, known bool) {
	p, known = s.p2p[[2]int{a.Index, b.Index}]
	return p, known
}

// GPU is the one with this PCI address, in any spelling; nil where there is none.
func (s *System) GPU(busID string) *GPU {
	busID = normalBusID(busID)
	for _, g := range s.GPUs {
		if g.PCI.BusID == busID {
			return g
		}
	}
	return nil
}

// NIC is the card that has an RDMA device or an interface of this name; nil where
// there is none.
func (s *System) NIC(name string) *NIC {
	for _, n := range s.NICs {
		if n.Name == name ||
			slices.ContainsFunc(n.RDMA, func(r RDMA) bool { return r.Name == name }) ||
			slices.ContainsFunc(n.Netdevs, func(d Netdev) bool { return d.Name == name }) {
			return n
		}
	}
	return nil
}

// numberGuessed gives GPUs that a file does not number the driver's order, which is
// that of addresses.
func (s *System) numberGuessed() {
	var list []*GPU
	taken := map[int]bool{}
	for _, g := range s.GPUs {
		if g.guessed {
			list = append(list, g)
		} else {
			taken[g.Index] = true
		}
	}
	slices.SortFunc(list, func(a, b *GPU) int { return cmp.Compare(a.PCI.BusID, b.PCI.BusID) })
	next := 0
	for _, g := range list {
		for taken[next] {
			next++
		}
		g.Index = next
		next++
	}
}

// fromFile says that s is what a file describes, and no more.
func (s *System) fromFile() bool { return s.pci != nil }

// sorted puts devices into the order that the fields promise.
func (s *System) sorted() {
	slices.SortStableFunc(s.CPUs, func(a, b *CPU) int {
		if (a.Node < 0) != (b.Node < 0) {
			return -cmp.Compare(a.Node, b.Node) // the unknown one last
		}
		return cmp.Compare(a.Node, b.Node)
	})
	slices.SortStableFunc(s.GPUs, func(a, b *GPU) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortStableFunc(s.NICs, func(a, b *NIC) int {
		if (a.PCI == nil) != (b.PCI == nil) {
			return -cmp.Compare(a.BusID(), b.BusID())
		}
		return cmp.Or(cmp.Compare(a.BusID(), b.BusID()), cmp.Compare(a.Name, b.Name))
	})
}
