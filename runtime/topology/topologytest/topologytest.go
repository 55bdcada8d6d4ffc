// Package topologytest makes machines that do not exist: folders with as much of
// /sys and /proc as topology.Read and gorun doctor look at, and a stand-in for
// NVIDIA's management library. machines.go has some that are ready; what a test
// wants to be wrong with one it changes by Write, Link and Remove.
package topologytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// Machine is one in the making.
type Machine struct {
	Root string // for topology.Read
	GPUs GPUs   // what the driver says; nil: there is no driver

	t testing.TB
}

// New is a machine without anything.
func New(t testing.TB) *Machine {
	m := &Machine{Root: t.TempDir(), t: t}
	m.Write("sys/devices/virtual/.keep", "")
	return m
}

// System reads the machine.
func (m *Machine) System() *topology.System {
	m.t.Helper()
	var nvml topology.NVML
	if m.GPUs != nil {
		nvml = m.GPUs
	}
	s, err := topology.Read(m.Root, nvml)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// Write makes a file, with a line feed behind its text as the kernel has it. The path
// starts below the root: sys/class/net/eth0/mtu.
func (m *Machine) Write(path, text string) {
	m.t.Helper()
	path = filepath.Join(m.Root, path)
	m.check(os.MkdirAll(filepath.Dir(path), 0o755))
	m.check(os.WriteFile(path, []byte(text+"\n"), 0o644))
}

// Link makes a symbolic link to another path of the machine.
func (m *Machine) Link(path, to string) {
	m.t.Helper()
	rel, err := filepath.Rel(filepath.Dir(path), to)
	m.check(err)
	path = filepath.Join(m.Root, path)
	m.check(os.MkdirAll(filepath.Dir(path), 0o755))
	m.check(os.Symlink(rel, path))
}

// Remove takes a path away, with all below.
func (m *Machine) Remove(path string) {
	m.t.Helper()
	m.check(os.RemoveAll(filepath.Join(m.Root, path)))
}

func (m *Machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// Processor is what all CPUs of a machine are.
type Processor struct {
	Vendor        string // "" is an Arm
	Family, Model int
}

// CPUs makes NUMA nodes with so many cores each.
func (m *Machine) CPUs(p Processor, nodes, cores int) {
	if p.Vendor == "" {
		m.Write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\n")
	} else {
		m.Write("proc/cpuinfo", fmt.Sprintf("processor\t: 0\nvendor_id\t: %s\ncpu family\t: %d\nmodel\t\t: %d\n\nprocessor\t: 1", p.Vendor, p.Family, p.Model))
	}
	for n := range nodes {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", n)
		m.Write(dir+"cpulist", fmt.Sprintf("%d-%d", n*cores, (n+1)*cores-1))
		m.Write(dir+"cpumap", mask(nodes*cores, n*cores, (n+1)*cores))
	}
	m.Write("sys/devices/system/node/online", fmt.Sprintf("0-%d", nodes-1))
	m.Write("sys/devices/system/cpu/online", fmt.Sprintf("0-%d", nodes*cores-1))
}

// mask is cores from first to before end, of total, as the kernel writes it.
func mask(total, first, end int) string {
	words := make([]uint32, (total+31)/32)
	for c := first; c < end; c++ {
		words[c/32] |= 1 << (c % 32)
	}
	var text []string
	for i := len(words) - 1; i >= 0; i-- {
		text = append(text, fmt.Sprintf("%08x", words[i]))
	}
	return strings.Join(text, ",")
}

// PCI is a device to be made. Where is its path below the root complex, the device
// last: "pci0000:17/0000:17:01.0/0000:18:00.0". Ports on the way are made with it.
type PCI struct {
	Where          string
	Class          string // 0x030200
	Vendor, Device string
	Node           int    // of NUMA; -1 unknown
	Speed          string // 32.0 GT/s PCIe
	Width          int
}

// Device makes a PCI device and returns its folder, "sys/devices/pci.../...".
func (m *Machine) Device(p PCI) string {
	parts := strings.Split(p.Where, "/")
	for i := 1; i < len(parts); i++ {
		dir := "sys/devices/" + strings.Join(parts[:i+1], "/")
		if _, err := os.Stat(filepath.Join(m.Root, dir)); err == nil {
			continue // a port that has other devices below it
		}
		class, vendor, device := "0x060400", "0x8086", "0x352a"
		if i == len(parts)-1 {
			class, vendor, device = p.Class, p.Vendor, p.Device
		}
		for name, text := range map[string]string{
			"class": class, "vendor": vendor, "device": device, "subsystem_vendor": vendor, "subsystem_device": "0x0000",
			"numa_node": fmt.Sprint(p.Node), "max_link_speed": p.Speed, "max_link_width": fmt.Sprint(p.Width),
		} {
			m.Write(dir+"/"+name, text)
		}
		m.Link("sys/bus/pci/devices/"+parts[i], dir)
	}
	return "sys/devices/" + p.Where
}

// Netdev makes an interface in a device's folder, or of software where dir is empty.
// d.Kind is what the kernel calls it: "device" is a card.
func (m *Machine) Netdev(dir string, d topology.Netdev) {
	place := "sys/devices/virtual/net/" + d.Name
	if dir != "" {
		place = dir + "/net/" + d.Name
		m.Link(place+"/device", dir)
		if d.Driver != "" {
			driver := "sys/bus/pci/drivers/" + d.Driver
			m.Write(driver+"/bind", "")
			if _, err := os.Lstat(filepath.Join(m.Root, dir, "driver")); err != nil {
				m.Link(dir+"/driver", driver)
			}
		}
	}
	speed := -1
	if d.Mbps > 0 {
		speed = d.Mbps
	}
	kind := "1" // Ethernet
	if d.Kind == "loopback" {
		kind, d.Kind = "772", ""
	}
	uevent := "INTERFACE=" + d.Name
	if d.Kind != "" && d.Kind != "device" {
		uevent = "DEVTYPE=" + d.Kind + "\n" + uevent
	}
	for name, text := range map[string]string{
		"mtu": fmt.Sprint(d.MTU), "operstate": d.State, "speed": fmt.Sprint(speed), "uevent": uevent,
		"type": kind, "dev_port": "0", "address": "02:00:00:00:00:01",
	} {
		m.Write(place+"/"+name, text)
	}
	m.Link("sys/class/net/"+d.Name, place)
}

// RDMA makes an RDMA device in a device's folder, or of software where dir is empty,
// with its ports. A port's interfaces are in its table of addresses.
func (m *Machine) RDMA(dir string, r topology.RDMA) {
	place := "sys/devices/virtual/infiniband/" + r.Name
	if dir != "" {
		place = dir + "/infiniband/" + r.Name
	}
	m.Write(place+"/node_guid", r.GUID)
	m.Write(place+"/sys_image_guid", r.GUID)
	for _, p := range r.Ports {
		port := fmt.Sprintf("%s/ports/%d/", place, p.Number)
		number := map[string]int{"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}[p.State]
		m.Write(port+"state", fmt.Sprintf("%d: %s", number, p.State))
		m.Write(port+"link_layer", p.LinkLayer)
		m.Write(port+"rate", fmt.Sprintf("%d Gb/sec (4X NDR)", p.Mbps/1000))
		for i, netdev := range p.Netdevs {
			for v := range 2 { // RoCE v1 and v2
				slot := fmt.Sprint(2*i + v)
				m.Write(port+"gid_attrs/ndevs/"+slot, netdev)
				m.Write(port+"gid_attrs/types/"+slot, []string{"IB/RoCE v1", "RoCE v2"}[v])
				m.Write(port+"gids/"+slot, fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a00:%02x%02x", p.Number, i+1))
			}
		}
	}
	if r.Verbs != "" {
		m.Write("sys/class/infiniband_verbs/"+filepath.Base(r.Verbs)+"/ibdev", r.Name)
	}
	m.Link("sys/class/infiniband/"+r.Name, place)
}

// GPUs stands in for NVIDIA's management library.
type GPUs []topology.Device

// unsupported is what the driver says of GPUs that it has reach none.
const unsupported = "the chipset does not support it"

// Devices implements topology.NVML.
func (g GPUs) Devices() ([]topology.Device, error) { return g, nil }

// P2P implements topology.NVML: GPUs reach each other where both have NVLinks.
func (g GPUs) P2P(a, b int) (topology.P2P, error) {
	if len(g[a].NVLinks) > 0 && len(g[b].NVLinks) > 0 {
		return topology.P2P{Read: "ok", Write: "ok"}, nil
	}
	return topology.P2P{Read: unsupported, Write: unsupported}, nil
}
