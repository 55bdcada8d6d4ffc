package doctor

import "testing"

func TestCompare(t *testing.T) {
	card := func(driver string, speed, mtu int) Interface {
		return Interface{Name: "eth0", Kind: hardware, Driver: driver, Speed: speed, MTU: mtu}
	}
	device := func(state string) RDMADevice {
		return RDMADevice{Name: "mlx5_0", Ports: []RDMAPort{{Number: 1, State: state, LinkLayer: "Ethernet", Rate: "100 Gb/sec"}}}
	}
	like := func(host string, change func(v *Inventory)) Inventory {
		v := Inventory{
			Host: host, Gorun: "v1", Kernel: "6.12", Driver: "580.1", Libraries: map[string]string{"libnccl": "2.21.5"},
			Cards: []Interface{card("mlx5_core", 25000, 9000)}, RDMA: []RDMADevice{device("4: ACTIVE")}, Cores: 64,
		}
		if change != nil {
			change(&v)
		}
		return v
	}
	for name, c := range map[string]struct {
		change   func(v *Inventory)
		check    string
		severity Severity
		evidence string
	}{
		"driver":      {func(v *Inventory) { v.Driver = "570.1" }, "versions", Warning, "a, b: 580.1; c: 570.1"},
		"no driver":   {func(v *Inventory) { v.Driver = "" }, "versions", Warning, "a, b: 580.1; c: none"},
		"kernel":      {func(v *Inventory) { v.Kernel = "6.1" }, "versions", Note, "a, b: 6.12; c: 6.1"},
		"NCCL":        {func(v *Inventory) { v.Libraries = map[string]string{"libnccl": "2.28.3"} }, "versions", Error, "a, b: 2.21.5; c: 2.28.3"},
		"card speed":  {func(v *Inventory) { v.Cards = []Interface{card("mlx5_core", 10000, 9000)} }, "nics", Warning, "a, b: mlx5_core at 25 Gbit/s; c: mlx5_core at 10 Gbit/s"},
		"card driver": {func(v *Inventory) { v.Cards = []Interface{card("ice", 25000, 9000)} }, "nics", Warning, "a, b: mlx5_core at 25 Gbit/s; c: ice at 25 Gbit/s"},
		"card count": {func(v *Inventory) {
			v.Cards = []Interface{card("mlx5_core", 25000, 9000), card("mlx5_core", 25000, 9000)}
		}, "nics", Warning, "a, b: mlx5_core at 25 Gbit/s; c: mlx5_core at 25 Gbit/s, mlx5_core at 25 Gbit/s"},
		"MTU":       {func(v *Inventory) { v.Cards = []Interface{card("mlx5_core", 25000, 1500)} }, "nics", Warning, "a, b: 9000; c: 1500"},
		"RDMA port": {func(v *Inventory) { v.RDMA = []RDMADevice{device("1: DOWN")} }, "rdma", Warning, "a, b: mlx5_0 (Ethernet 100 Gb/sec ACTIVE); c: mlx5_0 (Ethernet 100 Gb/sec DOWN)"},
		"no RDMA":   {func(v *Inventory) { v.RDMA = nil }, "rdma", Warning, "a, b: mlx5_0 (Ethernet 100 Gb/sec ACTIVE); c: none"},
		"cores":     {func(v *Inventory) { v.Cores = 32 }, "cpus", Note, "a, b: 64; c: 32"},
	} {
		list := compare([]Inventory{like("a", nil), like("b", nil), like("c", c.change)})
		if len(list) != 1 {
			t.Errorf("%s: %d findings:\n%s", name, len(list), dump(list))
			continue
		}
		if f := list[0]; f.Check != c.check || f.Severity != c.severity || f.Evidence != c.evidence || f.Where.Host != "c" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if list := compare([]Inventory{like("a", nil), like("b", nil)}); list != nil {
		t.Errorf("alike:\n%s", dump(list))
	}
}

func TestInventory(t *testing.T) {
	f := newFake(t)
	f.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.3")
	f.file("usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5", "")
	f.symlink("usr/lib/x86_64-linux-gnu/libnccl.so.2", "usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5")
	f.file("opt/nccl/libnccl.so.2.28.3", "")
	v, missing := f.inventory("v1")
	if len(missing) > 0 || v.Kernel != "6.12.0-1-amd64" || v.Driver != "580.95.05" || v.Cores != 8 || len(v.Cards) != 1 || v.Libraries["libnccl"] != "2.21.5" {
		t.Errorf("%+v, missing %v", v, missing)
	}
	f.variable("LD_LIBRARY_PATH", "/nowhere:/opt/nccl")
	if v, _ := f.inventory("v1"); v.Libraries["libnccl"] != "2.28.3" {
		t.Errorf("with LD_LIBRARY_PATH: %v", v.Libraries)
	}
	f.file("venv/lib/python3.13/site-packages/nvidia/nccl/lib/libnccl.so.2", "") // pip keeps no version
	f.variable("VIRTUAL_ENV", "/venv")
	if v, _ := f.inventory("v1"); v.Libraries["libnccl"] != "2" {
		t.Errorf("with VIRTUAL_ENV: %v", v.Libraries)
	}
}
