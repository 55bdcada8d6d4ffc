package topology_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// sketch makes a machine of a short drawing: an element a line, with its attributes
// shortened, two spaces deeper than what it is in.
//
//	cpu NUMA [MODEL]        pci BUS [VENDOR DEVICE SUBDEVICE]
//	gpu INDEX SM            nvlink BUS COUNT | nvlink switch COUNT | c2c COUNT MBPS
//	net NAME MBPS
func sketch(t *testing.T, drawing string) *topology.System {
	t.Helper()
	var b strings.Builder
	b.WriteString(`<system version="1">`)
	var open []string
	depth := func(n int) {
		for len(open) > n {
			b.WriteString(open[len(open)-1])
			open = open[:len(open)-1]
		}
	}
	for line := range strings.Lines(strings.Trim(drawing, "\n")) {
		w := strings.Fields(line)
		depth((len(line) - len(strings.TrimLeft(line, " "))) / 2)
		close := "</" + w[0] + ">"
		w = append(w, "", "", "", "")
		switch w[0] {
		case "cpu":
			host := ""
			if w[2] == "other" {
				host = ` host_hash="0x2"`
			}
			fmt.Fprintf(&b, `<cpu numaid="%s"%s affinity="f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">`, w[1], host)
		case "pci":
			fmt.Fprintf(&b, `<pci busid="0000:%s:00.0" class="0x060400" vendor="%s" device="%s" subsystem_vendor="%s" subsystem_device="%s" link_speed="16.0 GT/s PCIe" link_width="16">`, w[1], w[2], w[3], w[2], w[4])
		case "gpu":
			fmt.Fprintf(&b, `<gpu dev="%s" sm="%s">`, w[1], w[2])
		case "nvlink":
			target, class := "0000:"+w[1]+":00.0", "0x030200"
			if w[1] == "switch" {
				target, class = "0000:ff:00.0", "0x068000"
			}
			fmt.Fprintf(&b, `<nvlink target="%s" count="%s" tclass="%s">`, target, w[2], class)
		case "c2c":
			fmt.Fprintf(&b, `<c2c count="%s" bw="%s">`, w[1], w[2])
		case "net":
			fmt.Fprintf(&b, `<nic><net name="%s" dev="0" port="1" speed="%s">`, w[1], w[2])
			close = "</net></nic>"
		}
		open = append(open, close)
	}
	depth(0)
	b.WriteString("</system>")
	s, err := topology.ParseXML([]byte(b.String()))
	if err != nil {
		t.Fatalf("%v, of %s", err, &b)
	}
	return s
}

// Each drawing has one property of NCCL's rules.
func TestPathRules(t *testing.T) {
	for name, c := range map[string]struct{ drawing, paths string }{
		"a switch below a switch": {`
cpu 0
  pci 01
    pci 02
      gpu 0 80
    pci 03
      gpu 1 80
    pci 04
      pci 05
        gpu 2 80
      pci 06
        net mlx5_0 100000
`, `
GPU0   LOC PIX PXB PXB PHB
GPU1   PIX LOC PXB PXB PHB
GPU2   PXB PXB LOC PIX PHB
mlx5_0 PXB PXB PIX LOC PHB
CPU0   PHB PHB PHB PHB LOC
`},
		"a Broadcom switch that looks like two": {`
cpu 0
  pci 01 0x1000 0xc010 0xa096
    pci 02
      gpu 0 80
    pci 04 0x1000 0xc010 0xa096
      pci 05
        net mlx5_0 100000
`, `
GPU0   LOC PIX PHB
mlx5_0 PIX LOC PHB
CPU0   PHB PHB LOC
`},
		"two levels of Broadcom's fifth generation": {`
cpu 0
  pci 01 0x1000 0xc030 0x0004
    pci 04 0x1000 0xc030 0x1005
      pci 05
        gpu 0 80
    pci 06 0x1000 0xc030 0x0005
      pci 07
        net mlx5_0 100000
`, `
GPU0   LOC PXB PHB
mlx5_0 PXB LOC PHB
CPU0   PHB PHB LOC
`},
		"NVLink in a row: one GPU passes on, two do not": {`
cpu 0
  pci 01
    gpu 0 80
      nvlink 02 2
  pci 02
    gpu 1 80
      nvlink 01 2
      nvlink 03 2
  pci 03
    gpu 2 80
      nvlink 02 2
      nvlink 04 2
  pci 04
    gpu 3 80
      nvlink 03 2
`, `
GPU0   LOC NVL NVB PHB PHB
GPU1   NVL LOC NVL NVB PHB
GPU2   NVB NVL LOC NVL PHB
GPU3   PHB NVB NVL LOC PHB
CPU0   PHB PHB PHB PHB LOC
`},
		"GPUs do not pass on what is not for GPUs": {`
cpu 0
  pci 01
    gpu 0 80
      nvlink switch 6
cpu 1
  pci 02
    gpu 1 80
      nvlink switch 6
  pci 03
    net mlx5_0 100000
`, `
GPU0   LOC NVL SYS PHB SYS
GPU1   NVL LOC PHB SYS PHB
mlx5_0 SYS PHB LOC SYS PHB
CPU0   PHB SYS SYS LOC SYS
CPU1   SYS PHB PHB SYS LOC
`},
		"chip to chip, and the nearest card behind the CPU": {`
cpu 0
  pci 01
    gpu 0 90
      c2c 10 44712
  pci 03
    net mlx5_0 400000
cpu 1
  pci 02
    gpu 1 90
      c2c 10 44712
  pci 04
    net mlx5_1 400000
`, `
GPU0   LOC SYS P2C SYS C2C SYS
GPU1   SYS LOC SYS P2C SYS C2C
mlx5_0 P2C SYS LOC SYS PHB SYS
mlx5_1 SYS P2C SYS LOC SYS PHB
CPU0   C2C SYS PHB SYS LOC SYS
CPU1   SYS C2C SYS PHB SYS LOC
`},
		"two machines": {`
cpu 0
  pci 01
    gpu 0 90
cpu 0 other
  pci 02
    net mlx5_0 100000
`, `
GPU0   LOC NET PHB NET
mlx5_0 NET LOC NET PHB
CPU0   PHB NET LOC NET
CPU0   NET PHB NET LOC
`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := table(sketch(t, c.drawing)); got != c.paths {
				t.Errorf("paths are%swant%s", got, c.paths)
			}
		})
	}
}

// NVLinks that join each with its neighbours alone are told as they are.
func TestExplainNVLinkInARow(t *testing.T) {
	s := sketch(t, `
cpu 0
  pci 01
    gpu 0 80
      nvlink 02 2
  pci 02
    gpu 1 80
      nvlink 01 2
      nvlink 03 1
  pci 03
    gpu 2 80
      nvlink 02 1
  pci 04
    gpu 3 80
  pci 05
    net n 100000
`)
	want := []string{
		"GPU0,1 reach each other over NVLink, 2 links each pair (about 40 GB/s in each direction).",
		"NVLink joins GPU1 and GPU2 (1 link) too.",
		"NVLink joins 1 more pair by way of one other GPU (NVB).",
		"GPU3: no NVLink to a GPU.",
		"In all 3 pairs without NVLink the path is farther than PXB, where NCCL by itself copies through the host's memory (NCCL_P2P_LEVEL changes that).",
	}
	if got := s.Explain()[1:6]; !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRates(t *testing.T) {
	s := sketch(t, `
cpu 0
  pci 01
    gpu 0 90
      nvlink switch 18
  pci 03
    net slow 100000
cpu 1
  pci 02
    gpu 1 90
      nvlink switch 12
  pci 04
    net fast 400000
`)
	for _, c := range []struct {
		a, b topology.Node
		want float64
	}{
		{s.GPUs[0], s.GPUs[1], 12 * 20.6},       // the narrower side
		{s.GPUs[0], s.NIC("slow"), 12.5},        // the network
		{s.GPUs[1], s.NIC("fast"), 24},          // PCIe, fourth generation
		{s.GPUs[0], s.NIC("fast"), 22},          // Sapphire Rapids' links
		{s.NIC("slow"), s.NIC("fast"), 12.5},    //
		{s.GPUs[0], &topology.GPU{Index: 9}, 0}, // of another machine
	} {
		if got := s.Rate(c.a, c.b); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%T to %T: %g GB/s, want %g", c.a, c.b, got, c.want)
		}
	}
	s = sketch(t, `
cpu 0
  pci 01
    gpu 0 80
      nvlink 02 4
  pci 02
    gpu 1 80
      nvlink 01 4
      nvlink 03 1
      nvlink switch 6
  pci 03
    gpu 2 80
      nvlink 02 1
      nvlink switch 6
`)
	for b, want := range map[int]float64{0: 80, 2: 120} { // direct; by the switch, which is faster
		if got := s.Rate(s.GPUs[1], s.GPUs[b]); math.Abs(got-want) > 1e-9 {
			t.Errorf("GPU1 to GPU%d: %g GB/s, want %g", b, got, want)
		}
	}
	if n := s.NVLinks(s.GPUs[1], s.GPUs[2]); n != 7 {
		t.Errorf("%d links join GPU1 and GPU2, want 1 and 6 by the switch", n)
	}
	s = system(t, "DGX H100")
	if got, want := s.Rate(s.GPUs[0], s.GPUs[7]), 18*20.6; math.Abs(got-want) > 1e-9 {
		t.Errorf("by four switches: %g GB/s, want %g", got, want)
	}
	if got := s.Path(s.GPUs[0], &topology.CPU{}); got != topology.DIS {
		t.Errorf("to a CPU of another machine: %s", got)
	}
}

// Cards that are equally near to several GPUs are shared out, by NCCL's rule: the
// first GPU begins with the first card, the second one in the middle.
func TestNearestNICsAreShared(t *testing.T) {
	machine := func(gpus, cards int) *topology.System {
		var b strings.Builder
		b.WriteString("cpu 0\n  pci 01\n")
		for i := range gpus {
			fmt.Fprintf(&b, "    pci %02x\n      gpu %d 90\n", 0x10+i, i)
		}
		for i := range cards {
			fmt.Fprintf(&b, "    pci %02x\n      net n%d 200000\n", 0x40+i, i)
		}
		b.WriteString("  pci 80\n    net far 200000\n  pci 81\n    net slow 10000\n")
		return sketch(t, b.String())
	}
	for _, c := range []struct {
		gpus, cards int
		want        string
	}{
		{1, 1, "[n0]"},
		{4, 1, "[n0] [n0] [n0] [n0]"},
		{2, 2, "[n0] [n1]"},
		{4, 2, "[n0] [n1] [n0] [n1]"},
		{4, 4, "[n0] [n2] [n1] [n3]"},
		{2, 4, "[n0 n1] [n2 n3]"},
		{2, 3, "[n0 n1] [n1 n2]"},
		{3, 3, "[n0] [n1] [n2]"},
		{1, 2, "[n0 n1]"},
	} {
		s := machine(c.gpus, c.cards)
		var got []string
		for _, g := range s.GPUs {
			var names []string
			for _, n := range s.NearestNICs(g) {
				names = append(names, n.Name)
			}
			got = append(got, fmt.Sprint(names))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%d GPUs, %d cards: %s, want %s", c.gpus, c.cards, g, c.want)
		}
		if near := s.NearestNICs(s.CPUs[0]); len(near) != c.cards+1 {
			t.Errorf("%d cards are near to the CPU, want all fast ones, %d", len(near), c.cards+1)
		}
	}
}

func TestGPUDirect(t *testing.T) {
	s := sketch(t, `
cpu 0
  pci 01
    pci 02
      gpu 0 90
    pci 03
      net near 100000
    pci 04
      pci 05
        net behind 100000
  pci 06
    net cpu 100000
cpu 1
  pci 07
    gpu 1 90
      c2c 1 44712
  pci 08
    net chip 100000
`)
	check := func(s *topology.System, g int, card, want string) {
		t.Helper()
		if ok, why := s.GPUDirect(s.GPUs[g], s.NIC(card)); why != want || ok != (want == "") {
			t.Errorf("GPU%d with %s: %v, %q, want %q", g, card, ok, why, want)
		}
	}
	check(s, 0, "near", "")
	check(s, 0, "behind", "")
	check(s, 0, "cpu", "the path is PHB, farther than PXB")
	check(s, 0, "chip", "the path is SYS, farther than PXB")
	check(s, 1, "chip", "") // P2C

	m := topologytest.DGXH100(t)
	m.Write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
	m.Remove("sys/class/infiniband/mlx5_1")
	m.RDMA("", topology.RDMA{Name: "rxe0", Ports: []topology.Port{{Number: 1, State: "ACTIVE"}}})
	dir := m.Device(topologytest.PCI{Where: "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:05.0/0000:1f:00.0", Class: "0x020000", Speed: "8.0 GT/s PCIe", Width: 8})
	m.Netdev(dir, topology.Netdev{Name: "ens5", Mbps: 10000, MTU: 1500, State: "up"})
	s = m.System()
	check(s, 0, "mlx5_0", "mlx5_0 has no active port")
	check(s, 0, "ens5", "ens5 has no RDMA device")
	check(s, 0, "rxe0", "rxe0 is made of software")
	if near := s.NearestNICs(s.GPUs[0]); len(near) != 2 || near[0].Name != "mlx5_2" {
		t.Errorf("with its own card down, GPU0 should take another of its socket: %v", near)
	}
}

// NVLink of a bridge leads to a GPU, not to a switch that joins all.
func TestNVLinkBridge(t *testing.T) {
	m := topologytest.Workstation(t)
	for i, peer := range []int{1, 0, 3, 2} {
		m.GPUs[i].NVLinks = slices.Repeat([]string{m.GPUs[peer].BusID}, 4)
	}
	s := m.System()
	if n := s.NVLinks(s.GPUs[0], s.GPUs[1]); s.Path(s.GPUs[0], s.GPUs[1]) != topology.NVL || n != 4 {
		t.Errorf("GPU0 to GPU1: %s, %d links", s.Path(s.GPUs[0], s.GPUs[1]), n)
	}
	if p := s.Path(s.GPUs[0], s.GPUs[2]); p != topology.SYS {
		t.Errorf("GPU0 to GPU2: %s", p)
	}
	say := strings.Join(s.Explain(), "\n")
	for _, want := range []string{"GPU0,1 reach each other over NVLink, 4 links each pair", "GPU2,3 reach each other over NVLink, 4 links each pair",
		"In all 4 pairs without NVLink the path is farther than PXB, where NCCL by itself copies through the host's memory"} {
		if !strings.Contains(say, want) {
			t.Errorf("%s\ndoes not say: %s", say, want)
		}
	}
}

func TestWithin(t *testing.T) {
	order := []topology.Path{topology.LOC, topology.NVL, topology.NVB, topology.C2C, topology.PIX, topology.PXB,
		topology.P2C, topology.PHB, topology.SYS, topology.NET, topology.DIS}
	for i, p := range order {
		for j, limit := range order {
			if p.Within(limit) != (i <= j) {
				t.Errorf("%s within %s: %v", p, limit, i > j)
			}
		}
	}
	if topology.Path("???").Within(topology.NET) {
		t.Error("an unknown path is near")
	}
}
