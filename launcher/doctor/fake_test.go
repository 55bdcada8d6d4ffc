package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// fake is a machine made of files, on which all is well until a test changes it.
type fake struct {
	*Machine
	t      testing.TB
	addrs  map[string][]netip.Prefix
	byName map[string]netip.Addr
	cards  int
	shm    Space
	shmErr error

	copies    []PeerCopy
	copiesErr error
}

// newFake is a host of a job on two of them with four workers each: one card, eight
// cores, no GPU and no RDMA.
func newFake(t testing.TB) *fake {
	f := bare(t, t.TempDir())
	f.netif("lo", "127.0.0.1/8").flags(flagUp | flagLoopback)
	f.netif("eth0", "10.0.0.7/24", "fe80::7/64").card("ice", 25000)
	return f
}

// newGPUs is the same with two GPUs, each below a PCIe switch with an InfiniBand card
// of its own, mlx5_0 and mlx5_1, and with a card of RoCE, mlx5_2, whose interface is
// eth0.
func newGPUs(t testing.TB) *fake {
	m := topologytest.New(t)
	f := bare(t, m.Root)
	f.netif("lo", "127.0.0.1/8").flags(flagUp | flagLoopback)
	f.netif("eth0", "10.0.0.7/24")
	m.CPUs(topologytest.Processor{Vendor: "GenuineIntel", Family: 6, Model: 143}, 2, 4)
	m.Write("sys/module/nvidia_peermem/version", "580.82.07")
	device := func(where, class, vendor string, node int) string {
		return m.Device(topologytest.PCI{Where: where, Class: class, Vendor: vendor, Device: "0x0001", Node: node, Speed: "32.0 GT/s PCIe", Width: 16})
	}
	for i, bus := range []string{"10", "20"} {
		top := strings.ReplaceAll("pci0000:10/0000:10:01.0/0000:11:00.0", ":1", ":"+bus[:1])
		device(top+"/0000:"+bus[:1]+"2:00.0/0000:"+bus[:1]+"3:00.0", "0x030200", "0x10de", i)
		card := device(top+"/0000:"+bus[:1]+"2:01.0/0000:"+bus[:1]+"6:00.0", "0x020700", "0x15b3", i)
		m.RDMA(card, topology.RDMA{
			Name: fmt.Sprint("mlx5_", i), GUID: fmt.Sprintf("a088:c203:00d5:%02x00", i), Verbs: fmt.Sprint("/dev/infiniband/uverbs", i),
			Ports: []topology.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", Mbps: 400000}},
		})
		for _, bridge := range []string{"0:01.0", "1:00.0", "2:00.0", "2:01.0"} {
			f.acs("0000:"+bus[:1]+bridge, 0)
		}
	}
	card := device("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "0x020000", "0x15b3", 0)
	m.RDMA(card, topology.RDMA{
		Name: "mlx5_2", GUID: "a088:c203:00d6:0000", Verbs: "/dev/infiniband/uverbs2",
		Ports: []topology.Port{{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Mbps: 200000, Netdevs: []string{"eth0"}}},
	})
	f.acs("0000:a0:01.0", 0)
	m.Link("sys/class/net/eth0/device", card)
	m.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build")
	m.Write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")
	for i := range 3 {
		m.Write(fmt.Sprint("dev/infiniband/uverbs", i), "")
	}
	return f
}

// acs writes the configuration space of a bridge, with two extended capabilities, of
// which the second is ACS with that control register.
func (f *fake) acs(bridge string, control uint16) {
	b := make([]byte, 4096)
	put := func(at, id, next int) { binary.LittleEndian.PutUint32(b[at:], uint32(next<<20|1<<16|id)) }
	put(0x100, 0x0001, 0x148) // error reporting
	put(0x148, acsID, 0)
	binary.LittleEndian.PutUint16(b[0x148+acsControl:], control)
	if err := os.WriteFile(f.path("sys/bus/pci/devices", bridge, "config"), b, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// bare has no network interface yet.
func bare(t testing.TB, root string) *fake {
	f := &fake{t: t, addrs: map[string][]netip.Prefix{}, byName: map[string]netip.Addr{"node7": netip.MustParseAddr("10.0.0.7")}}
	f.shm = Space{8 << 30, 8 << 30}
	f.copies = []PeerCopy{{From: 0, To: 1, Done: true}, {From: 1, To: 0, Done: true}}
	f.Machine = &Machine{
		Root: root, Hostname: "node7", Name: "node7", Hosts: 2, Workers: 4, World: 8,
		Addrs:  func() (map[string][]netip.Prefix, error) { return f.addrs, nil },
		Listen: listen,
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if a, ok := f.byName[name]; ok {
				return []netip.Addr{a}, nil
			}
			return nil, fmt.Errorf("lookup %s: no such host", name)
		},
		Space:      func(string) (Space, error) { return f.shm, f.shmErr },
		PeerCopies: func(context.Context) ([]PeerCopy, error) { return f.copies, f.copiesErr },
	}
	f.limits(1<<20, unlimited)
	f.file("proc/self/status", "Name:\tgorun\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-7")
	f.file("proc/self/cgroup", "0::/job")
	f.file("proc/sys/kernel/osrelease", "6.12.0-1-amd64")
	f.file("sys/fs/cgroup/job/cpu.max", "max 100000")
	for i := range 8 {
		f.file(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", i), "performance")
	}
	return f
}

func (f *fake) file(path, text string) {
	f.t.Helper()
	full := f.path(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// symlink makes a link whose target is named as from the root.
func (f *fake) symlink(path, target string) {
	f.t.Helper()
	full := f.path(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		f.t.Fatal(err)
	}
	rel, err := filepath.Rel(filepath.Dir(path), target)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(rel, full); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) limits(files, locked uint64) {
	text := func(n uint64) string {
		if n == unlimited {
			return "unlimited"
		}
		return fmt.Sprint(n)
	}
	f.file("proc/self/limits", fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \n"+
		"Max open files            1024                 %-20s files     \nMax locked memory         %-20s %-20s bytes     ", text(files), text(locked), text(locked)))
}

func (f *fake) variable(name, value string) { f.Environ = append(f.Environ, name+"="+value) }

// netif is an interface of the machine: up, with a carrier, and virtual.
type netif struct {
	f    *fake
	name string
}

func (f *fake) netif(name string, addrs ...string) netif {
	n := netif{f, name}
	index := fmt.Sprint(len(f.addrs) + 1)
	f.addrs[name] = []netip.Prefix{}
	for _, a := range addrs {
		f.addrs[name] = append(f.addrs[name], netip.MustParsePrefix(a))
	}
	n.flags(flagUp)
	for file, text := range map[string]string{"ifindex": index, "iflink": index, "carrier": "1", "mtu": "1500", "uevent": "INTERFACE=" + name} {
		n.file(file, text)
	}
	return n
}

func (n netif) file(name, text string) netif {
	n.f.file("sys/class/net/"+n.name+"/"+name, text)
	return n
}

func (n netif) flags(bits int) netif { return n.file("flags", fmt.Sprintf("%#x", bits)) }

// card puts hardware behind the interface.
func (n netif) card(driver string, speed int) netif {
	n.f.cards++
	pci := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0", n.f.cards)
	n.f.file(pci+"/class", "0x020000")
	n.f.file(pci+"/vendor", "0x8086")
	n.f.file("sys/bus/pci/drivers/"+driver+"/bind", "")
	n.f.symlink(pci+"/driver", "sys/bus/pci/drivers/"+driver)
	n.f.symlink("sys/class/net/"+n.name+"/device", pci)
	return n.file("speed", fmt.Sprint(speed))
}

// bridge makes it one of containers.
func (n netif) bridge() netif { return n.file("bridge/stp_state", "0") }

// found runs one check.
func (f *fake) found(c check) ([]Finding, error) { return c.look(f.t.Context(), f.Machine) }

// matching picks the findings whose what and evidence match.
func matching(list []Finding, pattern string) (out []Finding) {
	re := regexp.MustCompile(pattern)
	for _, f := range list {
		if re.MatchString(f.What) || re.MatchString(f.Evidence) {
			out = append(out, f)
		}
	}
	return out
}

// dump shows findings in a test's failure.
func dump(list []Finding) string {
	var b strings.Builder
	for _, f := range list {
		f.write(&b)
	}
	return b.String()
}
