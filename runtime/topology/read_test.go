package topology_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// One PCI function may have several RDMA devices and interfaces, and one RDMA device
// several ports; bonds, Soft-RoCE and IPoIB are each their own case.
func TestNetworkCards(t *testing.T) {
	m := topologytest.New(t)
	m.CPUs(topologytest.Processor{Vendor: "GenuineIntel", Family: 6, Model: 143}, 2, 4)
	function := func(where string) string {
		return m.Device(topologytest.PCI{Where: where, Class: "0x020000", Vendor: "0x15b3", Device: "0x1017", Node: 1, Speed: "8.0 GT/s PCIe", Width: 8})
	}
	port := func(n int, state, layer string, netdevs ...string) topology.Port {
		return topology.Port{Number: n, State: state, LinkLayer: layer, Mbps: 100000, Netdevs: netdevs}
	}
	two := function("pci0000:80/0000:80:01.0/0000:81:00.0")
	m.Netdev(two, topology.Netdev{Name: "ens1", Kind: "device", Driver: "mlx4_en", MTU: 1500, State: "down"})
	m.Netdev(two, topology.Netdev{Name: "ens1d1", Kind: "device", Driver: "mlx4_en", Mbps: 40000, MTU: 9000, State: "up"})
	m.RDMA(two, topology.RDMA{Name: "mlx4_0", GUID: "0002:c903:0001:0203", Verbs: "/dev/infiniband/uverbs1",
		Ports: []topology.Port{port(1, "DOWN", "Ethernet", "ens1"), port(2, "ACTIVE", "Ethernet", "ens1d1", "ens1d1.100")}})

	bonded := function("pci0000:80/0000:80:02.0/0000:82:00.0")
	m.Netdev(bonded, topology.Netdev{Name: "ens2", Kind: "device", Driver: "mlx5_core", Mbps: 100000, MTU: 1500, State: "up"})
	m.RDMA(bonded, topology.RDMA{Name: "mlx5_bond_0", Ports: []topology.Port{port(1, "ACTIVE", "Ethernet", "bond0")}})
	m.Netdev("", topology.Netdev{Name: "bond0", Kind: "bond", Mbps: 200000, MTU: 1500, State: "up"})
	m.Write("sys/class/net/bonding_masters", "bond0") // a file among the interfaces

	band := function("pci0000:80/0000:80:03.0/0000:83:00.0")
	m.RDMA(band, topology.RDMA{Name: "mlx5_1", GUID: "506b:4b03:00cb:9b12", Ports: []topology.Port{port(1, "ACTIVE", "InfiniBand")}})
	m.Netdev(band, topology.Netdev{Name: "ib0", Kind: "device", Driver: "mlx5_core", MTU: 2044, State: "up"})
	m.Write("sys/class/net/ib0/type", "32")
	m.Write("sys/class/net/ib0/address", "00:00:10:29:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:cb:9b:12")

	m.RDMA("", topology.RDMA{Name: "rxe0", Ports: []topology.Port{port(1, "ACTIVE", "Ethernet", "ens1d1")}})

	s := m.System()
	var got []string
	for _, n := range s.NICs {
		got = append(got, fmt.Sprintf("%s %s virtual=%v node=%d active=%v mbps=%d netdevs=%s", n.Name, n.BusID(), n.Virtual, n.CPU.Node, n.Active(), n.Mbps(), names(n.Netdevs)))
	}
	want := []string{
		"mlx4_0 0000:81:00.0 virtual=false node=1 active=true mbps=100000 netdevs=ens1,ens1d1",
		"mlx5_bond_0 0000:82:00.0 virtual=false node=1 active=true mbps=100000 netdevs=ens2",
		"mlx5_1 0000:83:00.0 virtual=false node=1 active=true mbps=100000 netdevs=ib0",
		"rxe0  virtual=true node=0 active=true mbps=100000 netdevs=",
	}
	if !slices.Equal(got, want) {
		t.Errorf("cards:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	two0 := topology.RDMA{Name: "mlx4_0", GUID: "0002:c903:0001:0203", Verbs: "/dev/infiniband/uverbs1",
		Ports: []topology.Port{port(1, "DOWN", "Ethernet", "ens1"), port(2, "ACTIVE", "Ethernet", "ens1d1", "ens1d1.100")}}
	if got := s.NIC("mlx4_0").RDMA[0]; !reflect.DeepEqual(got, two0) {
		t.Errorf("mlx4_0 is %+v, want %+v", got, two0)
	}
	ens1 := topology.Netdev{Name: "ens1", Kind: "device", Driver: "mlx4_en", MTU: 1500, State: "down"}
	if got := s.NIC("ens1").Netdevs[0]; got != ens1 {
		t.Errorf("ens1 is %+v, want %+v", got, ens1)
	}
	if got := s.NIC("ib0").RDMA[0].Ports[0].Netdevs; !slices.Equal(got, []string{"ib0"}) {
		t.Errorf("mlx5_1 has the interfaces %v, want ib0", got)
	}
	if got, want := names(s.Virtual), "bond0"; got != want || s.Virtual[0].Kind != "bond" {
		t.Errorf("virtual are %+v, want %s", s.Virtual, want)
	}
	// NCCL takes the first of a name, and none without a dev.
	const up, down = `<net name="mlx4_0" dev="0" speed="100000" port="2"`, `<net name="mlx4_0" speed="100000" port="1"`
	if text := s.XML(); !strings.Contains(text, up) || strings.Index(text, up) > strings.Index(text, down) {
		t.Errorf("ports are not as NCCL wants them:\n%s", text)
	}
	if s.NIC("nosuch") != nil {
		t.Error("there is a card called nosuch")
	}
	if len(s.Problems) > 0 {
		t.Errorf("problems: %q", s.Problems)
	}
}

func names(list []topology.Netdev) string {
	var out []string
	for _, d := range list {
		out = append(out, d.Name)
	}
	return strings.Join(out, ",")
}

// A link is as fast as the slower of its ends, and a device knows the ports above it.
func TestPCILinks(t *testing.T) {
	m := topologytest.DGXH100(t)
	m.Write("sys/bus/pci/devices/0000:12:00.0/max_link_speed", "16.0 GT/s PCIe")
	m.Write("sys/bus/pci/devices/0000:12:00.0/max_link_width", "8")
	p := m.System().GPUs[0].PCI
	if p.LinkSpeed != "16.0 GT/s PCIe" || p.LinkWidth != 8 {
		t.Errorf("GPU0's link is %s, %d wide", p.LinkSpeed, p.LinkWidth)
	}
	if want := []string{"0000:10:01.0", "0000:11:00.0", "0000:12:00.0"}; !slices.Equal(p.Bridges, want) || p.Parent.BusID != want[1] || p.Parent.Parent != nil {
		t.Errorf("above GPU0 are %v and the switch %+v, want %v", p.Bridges, p.Parent, want)
	}
}

// One NUMA node needs no number; nodes of memory alone are none.
func TestNUMANodes(t *testing.T) {
	m := topologytest.NoGPU(t)
	s := m.System()
	if len(s.CPUs) != 1 || s.NICs[0].CPU != s.CPUs[0] || s.CPUs[0].Node != 0 || s.CPUs[0].Cores != "0-1" {
		t.Errorf("CPUs are %+v, and the card is on %+v", s.CPUs[0], s.NICs[0].CPU)
	}
	m.Write("sys/devices/system/node/node1/cpulist", "")
	m.Write("sys/devices/system/node/node1/cpumap", "0")
	m.Write("sys/bus/pci/devices/0000:00:03.0/numa_node", "0")
	if s := m.System(); len(s.CPUs) != 1 {
		t.Errorf("a node of memory alone counts as a CPU: %+v", s.CPUs[1])
	}
	m.Remove("sys/devices/system/node")
	if s := m.System(); len(s.CPUs) != 1 || s.CPUs[0].Cores != "0-1" || s.CPUs[0].Arch != "x86_64" {
		t.Errorf("a kernel without NUMA: %+v", s.CPUs[0])
	}
	m.CPUs(topologytest.Processor{}, 1, 2)
	if s := m.System(); s.CPUs[0].Arch != "arm64" || s.CPUs[0].Vendor != "" {
		t.Errorf("an Arm: %+v", s.CPUs[0])
	}
}

// Without the driver, PCI shows the GPUs; with one that hides some, the others are left
// out, and said.
func TestGPUsWithoutTheDriver(t *testing.T) {
	m := topologytest.Workstation(t)
	seen := m.GPUs
	m.GPUs = nil
	s := m.System()
	if len(s.GPUs) != 4 || s.GPUs[3].PCI.BusID != "0000:c1:00.0" || s.GPUs[3].Name != "" {
		t.Fatalf("GPUs: %+v", s.GPUs)
	}
	if _, known := s.P2P(s.GPUs[0], s.GPUs[1]); known {
		t.Error("P2P is known")
	}
	if !slices.Contains(s.Explain(), "NVLinks are not known, and nor is whether GPUs may reach each other's memory: the driver was not asked.") {
		t.Errorf("it means %q", s.Explain())
	}
	m.GPUs = seen[1:3]
	s = m.System()
	want := []string{"PCI shows 2 more NVIDIA GPUs than the driver lets this process see; they are left out"}
	if len(s.GPUs) != 2 || s.GPUs[0].PCI.BusID != "0000:41:00.0" || !slices.Equal(s.Problems, want) {
		t.Errorf("%d GPUs, problems %q", len(s.GPUs), s.Problems)
	}
	if p, known := s.P2P(s.GPUs[0], s.GPUs[1]); !known || p.OK() {
		t.Errorf("P2P is %+v, %v", p, known)
	}
}

// broken is a driver that answers in part.
type broken struct {
	devices []topology.Device
	err     error
}

func (b broken) Devices() ([]topology.Device, error)      { return b.devices, b.err }
func (b broken) P2P(int, int) (p topology.P2P, err error) { return p, errors.New("lost") }

func TestWhatTheDriverDoesNotAnswerIsAProblem(t *testing.T) {
	m := topologytest.CloudVM(t)
	s, err := topology.Read(m.Root, broken{nil, errors.New("driver and library differ")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"the GPUs' names, their NVLinks and whether they reach each other are not known: driver and library differ"}
	if len(s.GPUs) != 2 || !slices.Equal(s.Problems, want) {
		t.Errorf("%d GPUs, problems %q", len(s.GPUs), s.Problems)
	}
	s, err = topology.Read(m.Root, broken{[]topology.Device(m.GPUs), errors.New("GPU1: NVLink 3: unknown")})
	if err != nil {
		t.Fatal(err)
	}
	want = []string{"not everything of the GPUs is known: GPU1: NVLink 3: unknown",
		"whether GPU0 reaches the memory of GPU1 is not known: lost", "whether GPU1 reaches the memory of GPU0 is not known: lost"}
	if s.Path(s.GPUs[0], s.GPUs[1]) != topology.NVL || !slices.Equal(s.Problems, want) {
		t.Errorf("path %s, problems %q", s.Path(s.GPUs[0], s.GPUs[1]), s.Problems)
	}
}

// A GPU that /sys does not show is on an unknown CPU.
func TestGPUThatIsNotInSys(t *testing.T) {
	m := topologytest.Workstation(t)
	m.GPUs[0].BusID = "00000000:E1:00.0"
	// A link that leads out of the root leads nowhere.
	if err := os.Symlink(t.TempDir(), filepath.Join(m.Root, "sys/bus/pci/devices/0000:e1:00.0")); err != nil {
		t.Fatal(err)
	}
	s := m.System()
	if g := s.GPU("00000000:E1:00.0"); g != s.GPUs[0] || g.PCI.CPU.Node != -1 || s.Path(g, s.GPUs[1]) != topology.SYS {
		t.Errorf("GPU0 is at %+v", s.GPUs[0].PCI)
	}
}

func TestReadWithoutSys(t *testing.T) {
	dir := t.TempDir()
	if _, err := topology.Read(dir, nil); err == nil || !strings.Contains(err.Error(), dir+"/sys/devices is not there") {
		t.Errorf("an empty folder: %v", err)
	}
}

// This machine, whatever it is: what netlink and rdmamap say fits what /sys says.
func TestLocal(t *testing.T) {
	if _, err := os.Stat("/sys/devices"); err != nil {
		testenv.Skip(t, "sysfs", err.Error())
	}
	s, err := topology.Local()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.CPUs) == 0 || s.CPUs[0].Arch == "" {
		t.Errorf("CPUs: %+v", s.CPUs)
	}
	var lo *topology.Netdev
	for i := range s.Virtual {
		if s.Virtual[i].Name == "lo" {
			lo = &s.Virtual[i]
		}
	}
	if lo == nil || !lo.Virtual || lo.Kind != "loopback" || lo.MTU < 1500 {
		t.Errorf("loopback is %+v of %+v", lo, s.Virtual)
	}
	if _, err := topology.ParseXML([]byte(s.XML())); err != nil {
		t.Errorf("this machine's XML is not read: %v", err)
	}
}

// The kernel's own lists (netlink, rdmamap) and files say the same of this machine: a
// root by another name is read from files. It says most where there are RDMA devices.
func TestKernelAndFilesAgree(t *testing.T) {
	if _, err := os.Stat("/sys/devices"); err != nil {
		testenv.Skip(t, "sysfs", err.Error())
	}
	text := func(s *topology.System) string {
		var b strings.Builder
		for _, n := range s.NICs {
			fmt.Fprintf(&b, "%s %s %v %v %+v %+v\n", n.Name, n.BusID(), n.Virtual, n.Active(), n.Netdevs, n.RDMA)
		}
		for _, d := range s.Virtual {
			d.Kind = "" // files name some kinds alone
			fmt.Fprintf(&b, "%+v\n", d)
		}
		return b.String() + s.XML()
	}
	var got, want string
	for range 20 { // interfaces may come and go between the two
		kernel, err := topology.Read("/", nil)
		if err != nil {
			t.Fatal(err)
		}
		files, err := topology.Read("/proc/self/root", nil)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(kernel.Virtual, func(a, b topology.Netdev) int { return strings.Compare(a.Name, b.Name) })
		if got, want = text(kernel), text(files); got == want {
			return
		}
	}
	if links, err := net.Interfaces(); err != nil || !slices.ContainsFunc(links, func(i net.Interface) bool {
		return i.Flags&net.FlagLoopback == 0 && strings.Contains(want, i.Name+" ")
	}) {
		testenv.Skip(t, "netns", "/sys shows the interfaces of another network namespace")
	}
	t.Errorf("the kernel says\n%s\nfiles say\n%s", got, want)
}
