package topologytest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// DGXH100 is a server with two sockets. On each are four PCIe switches with a GPU, and
// below each a second one with its network card, mlx5_0 to mlx5_7 (InfiniBand, 400
// Gbit/s); and a card for storage of its own, mlx5_8 and mlx5_9 (RoCE, 200 Gbit/s, eth0
// and eth1). All GPUs reach each other by four NVSwitches. nvidia_peermem is loaded.
//
// NUMA node 0 has GPUs 0 to 3.
func DGXH100(t testing.TB) *Machine {
	m := New(t)
	m.CPUs(Processor{"GenuineIntel", 6, 143}, 2, 56)
	m.Write("sys/module/nvidia_peermem/version", "580.82.07")
	var switches []string
	for i := range 4 {
		m.Device(PCI{fmt.Sprintf("pci0000:00/0000:00:%02x.0/0000:%02x:00.0", i+1, i+5), "0x068000", "0x10de", "0x22a3", 0, "16.0 GT/s PCIe", 2})
		for range []int{5, 4, 4, 5}[i] {
			switches = append(switches, fmt.Sprintf("0000:%02x:00.0", i+5))
		}
	}
	for i := range 8 {
		node, bus := i/4, 0x10+0x10*i
		top := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1)
		m.Device(PCI{fmt.Sprintf("%s/0000:%02x:00.0/0000:%02x:00.0", top, bus+2, bus+3), "0x030200", "0x10de", "0x2330", node, "32.0 GT/s PCIe", 16})
		card := m.Device(PCI{fmt.Sprintf("%s/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:00.0/0000:%02x:00.0", top, bus+2, bus+4, bus+5, bus+6),
			"0x020700", "0x15b3", "0x1021", node, "32.0 GT/s PCIe", 16})
		m.RDMA(card, topology.RDMA{
			Name: fmt.Sprintf("mlx5_%d", i), GUID: fmt.Sprintf("a088:c203:00d5:%02x00", i), Verbs: fmt.Sprintf("/dev/infiniband/uverbs%d", i),
			Ports: []topology.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", Mbps: 400000}},
		})
		m.GPUs = append(m.GPUs, topology.Device{
			BusID: fmt.Sprintf("00000000:%02X:00.0", bus+3), Name: "NVIDIA H100 80GB HBM3", Compute: 90, NVLinks: slices.Clone(switches),
		})
	}
	for i := range 2 {
		bus := 0xa0 + 0x10*i
		card := m.Device(PCI{fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1), "0x020000", "0x15b3", "0x1021", i, "32.0 GT/s PCIe", 16})
		eth := fmt.Sprintf("eth%d", i)
		m.Netdev(card, topology.Netdev{Name: eth, Kind: "device", Driver: "mlx5_core", Mbps: 200000, MTU: 9000, State: "up"})
		m.RDMA(card, topology.RDMA{
			Name: fmt.Sprintf("mlx5_%d", 8+i), GUID: fmt.Sprintf("a088:c203:00d6:%02x00", i), Verbs: fmt.Sprintf("/dev/infiniband/uverbs%d", 8+i),
			Ports: []topology.Port{{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Mbps: 200000, Netdevs: []string{eth}}},
		})
	}
	m.loopback()
	m.Netdev("", topology.Netdev{Name: "docker0", Kind: "bridge", MTU: 1500, State: "down"})
	return m
}

// Workstation is a machine with four RTX 4090, which have neither NVLink nor P2P, on
// two NUMA nodes, and a network card of 10 Gbit/s without RDMA, eno1, on the first.
func Workstation(t testing.TB) *Machine {
	m := New(t)
	m.CPUs(Processor{"AuthenticAMD", 25, 17}, 2, 16)
	for i := range 4 {
		bus := 0x01 + 0x40*i
		m.Device(PCI{fmt.Sprintf("pci0000:%02x/0000:%02x:01.1/0000:%02x:00.0", bus-1, bus-1, bus), "0x030000", "0x10de", "0x2684", i / 2, "16.0 GT/s PCIe", 16})
		m.GPUs = append(m.GPUs, topology.Device{BusID: fmt.Sprintf("00000000:%02X:00.0", bus), Name: "NVIDIA GeForce RTX 4090", Compute: 89})
	}
	card := m.Device(PCI{"pci0000:00/0000:00:03.1/0000:04:00.0", "0x020000", "0x8086", "0x1563", 0, "8.0 GT/s PCIe", 4})
	m.Netdev(card, topology.Netdev{Name: "eno1", Kind: "device", Driver: "ixgbe", Mbps: 10000, MTU: 1500, State: "up"})
	m.loopback()
	return m
}

// CloudVM is a virtual machine with two A100 whose NVLinks lead to a switch that it does
// not see, flat PCI, and no word on which NUMA node a device is on, of two. Its network
// card is virtio's eth0.
func CloudVM(t testing.TB) *Machine {
	m := New(t)
	m.CPUs(Processor{"GenuineIntel", 6, 85}, 2, 12)
	for i := range 2 {
		m.Device(PCI{fmt.Sprintf("pci0000:00/0000:00:%02x.0", i+4), "0x030200", "0x10de", "0x20b0", -1, "16.0 GT/s PCIe", 16})
		m.GPUs = append(m.GPUs, topology.Device{
			BusID: fmt.Sprintf("0000:00:%02x.0", i+4), Name: "NVIDIA A100-SXM4-40GB", Compute: 80, NVLinks: make([]string, 12),
		})
	}
	card := m.Device(PCI{"pci0000:00/0000:00:03.0", "0x020000", "0x1af4", "0x1041", -1, "", 0})
	m.Write(card+"/virtio0/device", "0x0001")
	m.Netdev(card+"/virtio0", topology.Netdev{Name: "eth0", Kind: "device", Driver: "virtio_net", MTU: 1460, State: "up"})
	m.loopback()
	return m
}

// NoGPU is a machine with one NUMA node and a network card, without RDMA, and without
// NVIDIA's driver.
func NoGPU(t testing.TB) *Machine {
	m := New(t)
	m.CPUs(Processor{"AuthenticAMD", 26, 2}, 1, 2)
	card := m.Device(PCI{"pci0000:00/0000:00:03.0", "0x020000", "0x1af4", "0x1041", -1, "", 0})
	m.Netdev(card, topology.Netdev{Name: "eth0", Kind: "device", Driver: "virtio_net", MTU: 1500, State: "up"})
	m.loopback()
	return m
}

func (m *Machine) loopback() {
	m.Netdev("", topology.Netdev{Name: "lo", Kind: "loopback", MTU: 65536, State: "unknown"})
}
