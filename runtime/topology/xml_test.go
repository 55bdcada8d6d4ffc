package topology_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// What NCCL's reader refuses is refused here, with the line.
func TestFilesThatNCCLDoesNotTake(t *testing.T) {
	const cpu = `<cpu numaid="0" affinity="f" arch="x86_64">`
	for text, want := range map[string]string{
		"":                                      "0 elements at the top, want one, <system>",
		"<system version=\"1\">":                "line 1: the file ends within <system> of line 1",
		"<graphs version=\"1\"/>":               "line 1: <graphs> is the outermost element, want <system>",
		"<system/>":                             `line 1: <system> has version "", want 1`,
		"<system version=\"1\"/>":               "line 1: <system> has no <cpu>",
		"<?xml version=\"1.0\"?>\n<system/>":    `line 1: "<?xml ver", which NCCL does not take: begin with <system>`,
		"<!DOCTYPE topology>\n<system/>":        `line 1: "<!DOCTYPE", which NCCL does not take: begin with <system>`,
		"<!-- for ever <system/>":               "line 1: a comment that does not end",
		"<system version=\"1\">\n\t" + cpu:      "line 2: a tab, which NCCL does not take: indent by spaces",
		"<system\n version=\"1\"/>":             `line 1: "\n version" where a name should be, in <system>`,
		"<system version=1/>":                   "line 1: version of <system> has no value in quotes",
		"<system version=\"1/>":                 "line 1: the value of version of <system> does not end within 254 bytes",
		"<system version=\"1\"></cpu>":          "line 1: </cpu> where </system> should be, for line 1",
		"text":                                  `line 1: "text" where an element should begin`,
		"<system version=\"1\"/>\n<system/>":    "2 elements at the top, want one, <system>",
		"<system version=\"1\"><cpu/></system>": "line 1: <cpu> has no numaid",
		"<system version=\"1\"><cpu numaid=\"x\"/></system>":                                                    `line 1: <cpu> has numaid="x", which is no whole number`,
		"<system version=\"1\">" + cpu + "</cpu>" + cpu + "</cpu></system>":                                     "line 1: <cpu> with numaid 0 comes twice",
		"<system version=\"1\">\n" + cpu + "\n<pci/>\n</cpu></system>":                                          "line 3: <pci> has no busid",
		"<system version=\"1\">" + cpu + "<pci busid=\"3b:00\"/></cpu></system>":                                `line 1: <pci> has busid="3b:00", which is no PCI address such as 0000:17:00.0`,
		"<system version=\"1\">" + cpu + strings.Repeat("<pci busid=\"0000:3b:00.0\"/>", 2) + "</cpu></system>": "line 1: <pci> with busid 0000:3b:00.0 comes twice",
		"<system version=\"1\">" + cpu + "<nic><net/></nic></cpu></system>":                                     "line 1: <net> has no name",
		"<system version=\"1\">" + cpu + strings.Repeat("<nic/>", 641) + "</cpu></system>":                      "line 1: more than 640 elements in <cpu>, which NCCL does not take",
		"<system version=\"1\">" + cpu + "<pci busid=\"0000:3b:00.0\"><gpu dev=\"-1\"/></pci></cpu></system>":   "line 1: <gpu> has dev=-1, want 0 or more",
		"<system a=\"\"" + strings.Repeat(" b=\"\"", 16) + "/>":                                                 "line 1: <system> has more than 16 attributes, which NCCL leaves out",
		"<system " + strings.Repeat("a", 255) + "=\"\"/>":                                                       `where a name should be, in <system>`,
	} {
		if s, err := topology.ParseXML([]byte(text)); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%.60q: got %v, %v\nwant %s", text, s, err, want)
		}
	}
}

// A file of NCCL's own comes out as it went in, with what has no meaning here.
func TestNCCLsOwnFile(t *testing.T) {
	const text = `<system version="1">
  <cpu host_hash="0xf32e" numaid="0" affinity="00ffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:11:00.0" class="0x060400" vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa064" link_speed="16 GT/s" link_width="16">
      <pcilink target="0000:21:00.0"/>
      <pci busid="0000:13:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" mlopart="-1" rank="0" gdr="1">
          <nvlink target="0000:e4:00.0" count="12" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:14:00.0" class="0x020700" link_speed="16 GT/s" link_width="16" keep="1">
        <nic>
          <net name="mlx5_0" dev="0" latency="0.000000" speed="200000" port="1" guid="0x3eb8a60003f7ceb8" maxconn="131072" gdr="1" coll="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
`
	s, err := topology.ParseXML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const first = "    <nic>\n      <net name=\"eth0\"" // what has no address goes first
	i, j := strings.Index(text, "    <pci busid=\"0000:11"), strings.Index(text, first)
	end := strings.Index(text, "  </cpu>")
	want := text[:i] + text[j:end] + text[i:j] + text[end:]
	if got := s.XML(); got != want {
		t.Errorf("written again:\n%s\nwant\n%s", got, want)
	}
	n := s.NIC("mlx5_0")
	if n == nil || n.RDMA[0].GUID != "b8ce:f703:00a6:b83e" || !n.Active() || n.Mbps() != 200000 {
		t.Errorf("mlx5_0 is %+v", n)
	}
	if e := s.NIC("eth0"); e == nil || len(e.RDMA) != 0 || e.Virtual || e.Netdevs[0].State != "up" {
		t.Errorf("eth0 is %+v", e)
	}
}

// placed is a file as clouds have them: where devices are, and nothing else.
const placed = `<!-- two switches that the virtual machine does not see -->
<system version="1">
  <cpu numaid="0" affinity="00000fff">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16"> <!-- the first -->
      <pci busid="0000:00:05.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0000:00:03.0" class="0x020000" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="00fff000">
    <pci busid="ffff:ff:02.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:00:04.0" class="0x030200"/>
    </pci>
  </cpu>
</system>
`

func TestFileOfPlacesAlone(t *testing.T) {
	s, err := topology.ParseXML([]byte(placed))
	if err != nil {
		t.Fatal(err)
	}
	const want = `
GPU0   LOC SYS SYS SYS PHB
GPU1   SYS LOC PIX PHB SYS
0000:00:03.0 SYS PIX LOC PHB SYS
CPU0   SYS PHB PHB LOC SYS
CPU1   PHB SYS SYS SYS LOC
`
	if got := table(s); got != want {
		t.Errorf("paths are%swant%s", got, want)
	}
	if near := s.NearestNICs(s.GPUs[1]); len(near) != 1 || near[0].Name != "0000:00:03.0" {
		t.Errorf("nearest to GPU1: %v", near)
	}
	if strings.Contains(s.XML(), "<gpu") || strings.Contains(s.XML(), "<nic") {
		t.Errorf("NCCL is to find out what devices are, but was told:\n%s", s.XML())
	}
}

// With such a file a machine's devices are where it says, and are all the same what
// the machine says.
func TestMachineThroughAFile(t *testing.T) {
	m := topologytest.CloudVM(t)
	file := filepath.Join(t.TempDir(), "placed.xml")
	if err := os.WriteFile(file, []byte(placed), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := topology.ReadWith(file, m.Root, m.GPUs)
	if err != nil {
		t.Fatal(err)
	}
	const want = `
GPU0   LOC NVL SYS SYS PHB
GPU1   NVL LOC PIX PHB SYS
eth0   SYS PIX LOC PHB SYS
CPU0   SYS PHB PHB LOC SYS
CPU1   PHB SYS SYS SYS LOC
`
	if got := table(s); got != want {
		t.Errorf("paths are%swant%s", got, want)
	}
	if g := s.GPUs[1]; g.Name != "NVIDIA A100-SXM4-40GB" || g.PCI.Vendor != "0x10de" || g.PCI.CPU.Cores != "0-11" || g.PCI.CPU.Vendor != "GenuineIntel" {
		t.Errorf("GPU1 is %+v at %+v on %+v", g, g.PCI, g.PCI.CPU)
	}
	if !slices.Contains(s.Explain(), "GPU1 should use eth0 (PIX, of unknown speed).") {
		t.Errorf("it means %q", s.Explain())
	}
	if _, err := topology.ReadWith("/nosuch.xml", m.Root, nil); err == nil || !strings.Contains(err.Error(), "/nosuch.xml") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Whatever a file holds, it is a machine or an error, and a machine can be written and
// read again.
func FuzzParseXML(f *testing.F) {
	f.Add([]byte(placed))
	f.Add([]byte(system(f, "DGX H100").XML()))
	f.Add([]byte("<system version='1'><cpu numaid='-1'/></system>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := topology.ParseXML(text)
		if err != nil {
			return
		}
		s.Matrix()
		s.Explain()
		again, err := topology.ParseXML([]byte(s.XML()))
		if err != nil {
			t.Fatalf("%v, of\n%s", err, s.XML())
		}
		if got, want := again.XML(), s.XML(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// A file without an end, such as a device, is not read into memory.
func TestEndlessFile(t *testing.T) {
	if _, err := topology.ReadFile("/dev/zero"); err == nil || !strings.Contains(err.Error(), "/dev/zero is no topology in NCCL's format: it is longer than") {
		t.Errorf("%v", err)
	}
}
