// Package netns gives tests several hosts on one machine. Each is a set of
// namespaces of its own (network, processes, mounts, host name, IPC), so that
// programs on it share nothing with those of another host but the file system:
//
//	 host0                   switch                  host1
//	┌──────────────────┐    ┌───────────────────┐    ┌──────────────────┐
//	│ eth0 10.99.0.1 ──┼────┼─ p0 ── br0 ── p1 ─┼────┼── eth0 10.99.0.2 │
//	│      fd99::1     │    │                   │    │       fd99::2    │
//	│ /dev/shm /proc   │    └───────────────────┘    │ /dev/shm /proc   │
//	└──────────────────┘     Unplug and Lose act     └──────────────────┘
//	                         on the ports
//
// The switch is a namespace too; it forwards Ethernet frames and speaks no IP, so
// nobody ever answers with an ICMP message. A cable that is pulled from one port
// leaves the other hosts' links up, as with a real switch.
//
// No name is bound anywhere. A namespace lives as long as its first process, which
// reads a pipe that the test holds: when the test ends, in whatever way, the kernel
// kills what runs on the hosts and takes the links away.
package netns

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// Options describe the hosts and what joins them.
type Options struct {
	Hosts  int   // 0 means 2
	MTU    int   // of eth0, in bytes; 0 means 1500. SetMTU changes it for one host.
	Rate   int64 // what each host may send, in bits a second; 0 is unlimited
	IPv6   bool  // eth0 has an IPv6 address alone, instead of an IPv4 address alone
	Decoys bool  // interfaces beside eth0 that lead to no other host; see decoys
	Shm    int64 // size of /dev/shm in bytes; 0 means 64 MiB, as containers have
}

// New makes hosts for the time of the test. Without the right to make namespaces,
// or the tools, the test is skipped; the feature's name is "netns".
func New(t testing.TB, o Options) []*Host {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "netns", "only root may make network namespaces")
	}
	for _, tool := range []string{"ip", "tc", "nsenter", "mount", "hostname"} {
		if _, err := exec.LookPath(tool); err != nil {
			testenv.Skip(t, "netns", err.Error()+" (Debian: iproute2, util-linux, mount, hostname)")
		}
	}
	if o.Hosts == 0 {
		o.Hosts = 2
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Shm == 0 {
		o.Shm = 64 << 20
	}
	n := &network{t: t, wire: begin(t, networkOnly, wireScript, nil)}
	for i := range o.Hosts {
		n.hosts = append(n.hosts, &Host{Name: fmt.Sprintf("host%d", i), Addr: address(i, o.IPv6), index: i, net: n})
	}
	for _, h := range n.hosts {
		h.first = begin(t, allNamespaces, hostScript, []string{
			"NAME=" + h.Name, "HOSTS=" + n.hostsFile(h), fmt.Sprint("SHM=", o.Shm),
		})
	}
	n.connect(o)
	return n.hosts
}

// network is the switch and the hosts at it.
type network struct {
	t     testing.TB
	wire  *first
	hosts []*Host
}

func address(host int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd99::%d", host+1))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.99.0.%d", host+1))
}

// hostsFile writes /etc/hosts for h. As Debian has it, a host's own name means
// loopback there; the others' names mean their addresses.
func (n *network) hostsFile(h *Host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", h.Name)
	for _, other := range n.hosts {
		if other != h {
			fmt.Fprintf(&b, "%s %s\n", other.Addr, other.Name)
		}
	}
	path := filepath.Join(n.t.TempDir(), "hosts")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// connect makes the links. The decoys come first, so that theirs are the lower
// numbers, as docker0's often is.
func (n *network) connect(o Options) {
	n.t.Helper()
	wire := []string{"link add br0 type bridge mcast_snooping 0", "link set br0 up"}
	for i, h := range n.hosts {
		if o.Decoys {
			h.ip(decoys(i)...)
		}
		wire = append(wire,
			fmt.Sprintf("link add p%d mtu 9216 type veth peer name eth0 mtu %d netns %d", i, o.MTU, h.first.pid()),
			fmt.Sprintf("link set p%d master br0 up", i))
	}
	n.wire.ip(wire...)
	for i, h := range n.hosts {
		bits := 24
		if o.IPv6 {
			bits = 64
		}
		h.ip(fmt.Sprintf("addr add %s/%d dev eth0%s", h.Addr, bits, map[bool]string{true: " nodad"}[o.IPv6]), "link set eth0 up")
		n.wire.run("tc", "qdisc", "add", "dev", port(i), "clsact")
		if o.Rate > 0 {
			h.first.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", fmt.Sprint(o.Rate), "burst", "128kb", "latency", "50ms")
		}
	}
	for _, h := range n.hosts {
		if err := h.In(linkRuns); err != nil {
			n.t.Fatalf("%s: %v", h.Name, err)
		}
	}
}

// linkRuns waits until eth0 is said to run, which the kernel sees some time after
// both of its ends are up.
func linkRuns() error {
	for end := time.Now().Add(time.Minute); ; {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil || eth0.Flags&net.FlagRunning != 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("eth0 does not run after a minute: %v", eth0.Flags)
		}
		time.Sleep(time.Millisecond)
	}
}

func port(host int) string { return fmt.Sprintf("p%d", host) }

// decoys are interfaces as they lie about on real hosts. Those of containers have
// the same address on every host; br-swarm has different ones in what looks like
// one network.
func decoys(host int) []string {
	var out []string
	bridge := func(name, addr string) {
		out = append(out, "link add "+name+" type bridge", "link set "+name+" up", "addr add "+addr+" dev "+name)
	}
	pair := func(a, b string) {
		out = append(out, "link add "+a+" type veth peer name "+b)
	}
	bridge("docker0", "172.17.0.1/16")
	pair("veth1a2b3c4", "container0")
	out = append(out, "link set veth1a2b3c4 master docker0 up", "link set container0 up")
	bridge("br-x", "172.18.0.1/16")
	bridge("br-swarm", fmt.Sprintf("172.19.0.%d/16", host+1))
	pair("vethswarm", "container1")
	out = append(out, "link set vethswarm master br-swarm up", "link set container1 up")
	pair("veth9", "veth9peer")
	out = append(out, "addr add 192.168.77.1/24 dev veth9", "link set veth9 up", "link set veth9peer up")
	pair("down0", "down0peer")
	out = append(out, fmt.Sprintf("addr add 10.98.0.%d/24 dev down0", host+1))
	pair("local0", "local0peer")
	return append(out, fmt.Sprintf("addr add 169.254.7.%d/16 dev local0", host+1), "link set local0 up", "link set local0peer up")
}

// run executes a tool in the network namespace of f; a failure ends the test.
func (f *first) run(name string, args ...string) {
	f.t.Helper()
	f.feed("", name, args...)
}

// ip executes commands of the tool of that name.
func (f *first) ip(lines ...string) {
	f.t.Helper()
	f.feed(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

func (f *first) feed(stdin, name string, args ...string) {
	f.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(f.pid()), "-n", name}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, stdin, bytes.TrimSpace(out))
	}
}
