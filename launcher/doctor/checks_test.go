package doctor

import (
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// fault is a machine with one thing wrong, and what doctor must say of it.
type fault struct {
	check    check
	spoil    func(f *fake)
	severity Severity
	where    Where  // without the host
	want     string // a regular expression that the finding's what or evidence matches
}

// faults are the local ones, by their names.
var faults = map[string]fault{
	"loopback down": {interfaces{}, func(f *fake) { f.netif("lo", "127.0.0.1/8").flags(flagLoopback) },
		Error, Where{Interface: "lo"}, `127\.0\.0\.1 leads nowhere`},
	"loopback without its address": {interfaces{}, func(f *fake) { f.addrs["lo"] = nil },
		Error, Where{Interface: "lo"}, `127\.0\.0\.1 leads nowhere`},
	"card down": {interfaces{}, func(f *fake) { f.netif("eth1", "10.1.0.7/24").card("ice", 0).flags(0).file("carrier", "") },
		Warning, Where{Interface: "eth1"}, `has an address, and is down`},
	"no carrier": {interfaces{}, func(f *fake) { f.netif("eth1", "10.1.0.7/24").card("ice", 0).file("carrier", "0") },
		Warning, Where{Interface: "eth1"}, `no carrier: packets that are routed to it vanish`},
	"link-local only": {interfaces{}, func(f *fake) { f.netif("eth1", "169.254.7.1/16", "fe80::1/64").card("ice", 1000) },
		Warning, Where{Interface: "eth1"}, `link-local addresses alone`},
	"one network": {interfaces{}, func(f *fake) { f.netif("eth1", "10.0.0.8/24").card("mlx5_core", 25000) },
		Warning, Where{Interface: "eth0, eth1"}, `2 interfaces are in the network 10\.0\.0\.0/24`},
	"bridge before the card": {interfaces{}, func(f *fake) { f.netif("br-x", "172.18.0.1/16").bridge().file("ifindex", "0") },
		Warning, Where{Interface: "br-x"}, `br-x leads to containers of this host, and yet is the first that NCCL takes`},
	"no interface": {interfaces{}, func(f *fake) { f.addrs["eth0"] = nil },
		Error, Where{}, `no interface has an address that another host could reach`},
	"name unknown": {hostname{}, func(f *fake) { delete(f.byName, "node7") },
		Warning, Where{}, `does not know its own name`},
	"name is 127.0.1.1": {hostname{}, func(f *fake) { f.byName["node7"] = netip.MustParseAddr("127.0.1.1") },
		Warning, Where{}, `means 127\.0\.1\.1 here`},
	"name is docker0": {hostname{}, func(f *fake) {
		f.netif("docker0", "172.17.0.1/16").bridge()
		f.byName["node7"] = netip.MustParseAddr("172.17.0.1")
	}, Warning, Where{Interface: "docker0"}, `the address of docker0, which is virtual`},
	"name is elsewhere": {hostname{}, func(f *fake) { f.byName["node7"] = netip.MustParseAddr("192.0.2.1") },
		Warning, Where{}, `no address of this host`},
	"NCCL_SOCKET_IFNAME": {variables{}, func(f *fake) { f.variable("NCCL_SOCKET_IFNAME", "=eth") },
		Error, Where{}, `NCCL_SOCKET_IFNAME==eth names eth, and no network interface here is called so`},
	"GLOO_SOCKET_IFNAME": {variables{}, func(f *fake) { f.variable("GLOO_SOCKET_IFNAME", "eth0,ens5") },
		Error, Where{}, `names ens5,`},
	"NCCL_IB_HCA": {variables{}, func(f *fake) { f.variable("NCCL_IB_HCA", "mlx5_0:1") },
		Error, Where{}, `names mlx5_0, and no RDMA device`},
	"NCCL_ALGO": {variables{}, func(f *fake) { f.variable("NCCL_ALGO", "rnig") },
		Error, Where{}, `NCCL_ALGO=rnig: there is no algorithm`},
	"NCCL_MAX_NCHANNELS": {variables{}, func(f *fake) { f.variable("NCCL_MIN_NCHANNELS", "4"); f.variable("NCCL_MAX_NCHANNELS", "2") },
		Error, Where{}, `NCCL_MIN_NCHANNELS has a value that no job of gorun takes`},
	"NCCL_IB_GID_INDEX": {variables{}, func(f *fake) { f.variable("NCCL_IB_GID_INDEX", "first") },
		Error, Where{}, `NCCL_IB_GID_INDEX=first: want a number from -1 to 4095`},
	"NCCL_TOPO_FILE": {variables{}, func(f *fake) { f.variable("NCCL_TOPO_FILE", "/etc/topo.xml"); f.file("etc/topo.xml", "<xml>") },
		Error, Where{}, `NCCL_TOPO_FILE=/etc/topo\.xml is no topology that NCCL takes`},
	"NCCL_TOPO_FILE is not there": {variables{}, func(f *fake) { f.variable("NCCL_TOPO_FILE", "/etc/topo.xml") },
		Error, Where{}, `no such file`},
	"comm.interface": {variables{}, func(f *fake) { f.Interface = "eth9" },
		Error, Where{Interface: "eth9"}, `names an interface that is not there`},
	"comm.interface down": {variables{}, func(f *fake) {
		f.netif("eth1", "10.1.0.7/24").card("ice", 0).flags(0)
		f.Interface = "eth1"
	}, Error, Where{Interface: "eth1"}, `is down, or has no address`},
	"few descriptors": {descriptors{}, func(f *fake) { f.limits(300, unlimited) },
		Warning, Where{}, `may open 300 files and sockets, and may need 320`},
	"small /dev/shm": {sharedMemory{}, func(f *fake) { f.shm = Space{64 << 20, 60 << 20} },
		Warning, Where{}, `/dev/shm has 60 MiB free, and 4 workers .* 256 MiB`},
	"no /dev/shm": {sharedMemory{}, func(f *fake) { f.shmErr = &fs.PathError{Op: "statfs", Path: "/dev/shm", Err: fs.ErrNotExist} },
		Warning, Where{}, `there is no /dev/shm`},
	"slow cores": {governors{}, func(f *fake) { f.file("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave") },
		Note, Where{}, `1 of 8 cores`},
	"CPU limit": {quota{}, func(f *fake) { f.file("sys/fs/cgroup/job/cpu.max", "250000 100000") },
		Warning, Where{}, `allows 2\.5 cores, and 4 workers`},
	"CPU limit above": {quota{}, func(f *fake) {
		f.file("sys/fs/cgroup/cpu.max", "100000 100000")
		f.file("sys/fs/cgroup/job/cpu.max", "300000 100000")
	}, Warning, Where{}, `allows 1 cores`},
	"CPU limit below": {quota{}, func(f *fake) {
		f.file("sys/fs/cgroup/cpu.max", "300000 100000")
		f.file("sys/fs/cgroup/job/cpu.max", "150000 100000")
	}, Warning, Where{}, `allows 1\.5 cores`},
	"CPU limit of version 1": {quota{}, func(f *fake) {
		f.file("proc/self/cgroup", "2:cpu,cpuacct:/job\n1:name=systemd:/")
		f.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000")
		f.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000")
	}, Warning, Where{}, `allows 3 cores`},
	"few cores, no control groups": {quota{}, func(f *fake) {
		f.file("proc/self/cgroup", "")
		f.file("proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t2")
	}, Warning, Where{}, `4 workers may run on 1 core:`},
	"few cores": {quota{}, func(f *fake) {
		f.file("proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0,4-5")
	}, Warning, Where{}, `4 workers may run on 3 cores`},
}

func TestFaults(t *testing.T) {
	for name, c := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.test(t, newFake(t))
		})
	}
	for name, c := range gpuFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.test(t, newGPUs(t))
		})
	}
}

// test spoils a machine on which all is well, and expects one finding.
func (c fault) test(t *testing.T, f *fake) {
	c.spoil(f)
	list, err := f.found(c.check)
	if err != nil {
		t.Fatal(err)
	}
	got := matching(list, c.want)
	if len(got) != 1 {
		t.Fatalf("%d findings match %q, want 1, of:\n%s", len(got), c.want, dump(list))
	}
	switch g := got[0]; {
	case g.Severity != c.severity:
		t.Errorf("severity %s, want %s", g.Severity, c.severity)
	case g.Where != c.where:
		t.Errorf("where %+v, want %+v", g.Where, c.where)
	case g.Evidence == "" || g.Fix == "" && g.Severity > Note:
		t.Errorf("no evidence, or nothing to do: %+v", g)
	}
	for _, other := range list {
		if other.Severity != Note && other != got[0] {
			t.Errorf("beside it: %+v", other)
		}
	}
}

// A machine on which all is well has no findings, and each fault's check runs.
func TestHealthy(t *testing.T) {
	f := newFake(t)
	f.netif("docker0", "172.17.0.1/16").bridge().file("carrier", "0")
	f.netif("veth1a2b", "fe80::3/64").file("iflink", "1")
	e := Examine(t.Context(), f.Machine)
	r := NewReport([]string{f.Name}, e)
	if r.Status() != 0 || len(matching(e.Findings, `other hosts try eth0 \(10\.0\.0\.7\) first: it is up, has a carrier, has hardware behind it, runs at 25 Gbit/s; then docker0`)) != 1 {
		t.Errorf("status %d:\n%s", r.Status(), dump(e.Findings))
	}
	known := map[string]bool{}
	for _, c := range checks() {
		known[c.name()] = true
	}
	both := maps.Clone(faults)
	maps.Copy(both, gpuFaults)
	for name, c := range both {
		if !known[c.check.name()] {
			t.Errorf("%s: its check does not run", name)
		}
	}
}

// NCCL prefers InfiniBand's interfaces, and takes what it is told; then a bridge that
// comes before the card does no harm.
func TestBridgeThatNCCLLeavesOut(t *testing.T) {
	for name, spare := range map[string]func(f *fake){
		"ib0":      func(f *fake) { f.netif("ib0", "10.9.0.7/24").card("mlx5_core", 100000) },
		"variable": func(f *fake) { f.variable("NCCL_SOCKET_IFNAME", "eth0") },
		"docker":   func(f *fake) { f.netif("docker0", "172.17.0.1/16").bridge().file("ifindex", "0") },
	} {
		f := newFake(t)
		if name != "docker" {
			f.netif("br-x", "172.18.0.1/16").bridge().file("ifindex", "0")
		}
		spare(f)
		list, err := f.found(interfaces{})
		if err != nil || len(matching(list, `leads to containers`)) != 0 {
			t.Errorf("%s: %v\n%s", name, err, dump(list))
		}
	}
}

// What cannot be read is said, and the other checks go on.
func TestUnreadable(t *testing.T) {
	f := newFake(t)
	if err := os.Remove(f.path("proc/self/limits")); err != nil {
		t.Fatal(err)
	}
	e := Examine(t.Context(), f.Machine)
	for _, u := range e.Unseen {
		if u.Check == (descriptors{}).name() {
			if u.Host != "node7" || !strings.Contains(u.Why, "proc/self/limits: no such file") {
				t.Errorf("%+v", u)
			}
			return
		}
	}
	t.Errorf("nothing of it: %+v", e.Unseen)
}

// Without /sys nothing is known of interfaces, and nothing is said of them.
func TestNoSys(t *testing.T) {
	f := newFake(t)
	if err := os.RemoveAll(f.path("sys/class/net")); err != nil {
		t.Fatal(err)
	}
	if list, err := f.found(interfaces{}); err == nil || !strings.Contains(err.Error(), "is /sys mounted?") {
		t.Errorf("%v\n%s", err, dump(list))
	}
}

// After nsenter -n, /sys is still that of another network namespace.
func TestSysOfAnotherNamespace(t *testing.T) {
	f := newFake(t)
	f.netif("eth1", "10.0.0.8/24").card("mlx5_core", 25000)
	delete(f.addrs, "eth1")
	list, err := f.interfaces()
	if err != nil || names(list) != "lo, eth0" {
		t.Errorf("%s, %v: want those that this namespace has", names(list), err)
	}
}

func TestUnknownNames(t *testing.T) {
	have := []string{"eth0", "mlx5_0", "mlx5_1"}
	for _, c := range []struct {
		value  string
		prefix bool
		want   string
	}{
		{"eth", true, ""}, {"eth", false, "eth"}, {"=eth", true, "eth"}, {"=eth0", true, ""}, {"^docker", true, ""},
		{"^=br0", true, ""}, {"mlx5_0:1,mlx5_9:2", true, "mlx5_9"}, {"=mlx5_0:1,mlx5_1", true, ""}, {"", true, ""}, {"eth0, ", false, ""},
	} {
		if got := strings.Join(unknown(c.value, c.prefix, have), ","); got != c.want {
			t.Errorf("%q (prefix %t): %q, want %q", c.value, c.prefix, got, c.want)
		}
	}
}

// A file that is named without its folder lies where gorun was started, not below /.
func TestTopologyFileBesideUs(t *testing.T) {
	f := newFake(t)
	f.variable("NCCL_TOPO_FILE", "own.xml")
	t.Chdir(t.TempDir())
	if err := os.WriteFile("own.xml", []byte("<xml>"), 0o600); err != nil {
		t.Fatal(err)
	}
	list := variables{}.topology(f.Machine)
	if len(list) != 1 || strings.Contains(list[0].Evidence, "no such file") {
		t.Errorf("%+v", list)
	}
}
