package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// machines are all that topologytest has, with the paths between their devices as
// drawn on paper: GPUs, then network cards, then CPUs.
var machines = map[string]struct {
	make  func(testing.TB) *topologytest.Machine
	paths string
}{
	"DGX H100": {topologytest.DGXH100, `
GPU0   LOC NVL NVL NVL NVL NVL NVL NVL PXB PHB PHB PHB SYS SYS SYS SYS PHB SYS PHB SYS
GPU1   NVL LOC NVL NVL NVL NVL NVL NVL PHB PXB PHB PHB SYS SYS SYS SYS PHB SYS PHB SYS
GPU2   NVL NVL LOC NVL NVL NVL NVL NVL PHB PHB PXB PHB SYS SYS SYS SYS PHB SYS PHB SYS
GPU3   NVL NVL NVL LOC NVL NVL NVL NVL PHB PHB PHB PXB SYS SYS SYS SYS PHB SYS PHB SYS
GPU4   NVL NVL NVL NVL LOC NVL NVL NVL SYS SYS SYS SYS PXB PHB PHB PHB SYS PHB SYS PHB
GPU5   NVL NVL NVL NVL NVL LOC NVL NVL SYS SYS SYS SYS PHB PXB PHB PHB SYS PHB SYS PHB
GPU6   NVL NVL NVL NVL NVL NVL LOC NVL SYS SYS SYS SYS PHB PHB PXB PHB SYS PHB SYS PHB
GPU7   NVL NVL NVL NVL NVL NVL NVL LOC SYS SYS SYS SYS PHB PHB PHB PXB SYS PHB SYS PHB
mlx5_0 PXB PHB PHB PHB SYS SYS SYS SYS LOC PHB PHB PHB SYS SYS SYS SYS PHB SYS PHB SYS
mlx5_1 PHB PXB PHB PHB SYS SYS SYS SYS PHB LOC PHB PHB SYS SYS SYS SYS PHB SYS PHB SYS
mlx5_2 PHB PHB PXB PHB SYS SYS SYS SYS PHB PHB LOC PHB SYS SYS SYS SYS PHB SYS PHB SYS
mlx5_3 PHB PHB PHB PXB SYS SYS SYS SYS PHB PHB PHB LOC SYS SYS SYS SYS PHB SYS PHB SYS
mlx5_4 SYS SYS SYS SYS PXB PHB PHB PHB SYS SYS SYS SYS LOC PHB PHB PHB SYS PHB SYS PHB
mlx5_5 SYS SYS SYS SYS PHB PXB PHB PHB SYS SYS SYS SYS PHB LOC PHB PHB SYS PHB SYS PHB
mlx5_6 SYS SYS SYS SYS PHB PHB PXB PHB SYS SYS SYS SYS PHB PHB LOC PHB SYS PHB SYS PHB
mlx5_7 SYS SYS SYS SYS PHB PHB PHB PXB SYS SYS SYS SYS PHB PHB PHB LOC SYS PHB SYS PHB
mlx5_8 PHB PHB PHB PHB SYS SYS SYS SYS PHB PHB PHB PHB SYS SYS SYS SYS LOC SYS PHB SYS
mlx5_9 SYS SYS SYS SYS PHB PHB PHB PHB SYS SYS SYS SYS PHB PHB PHB PHB SYS LOC SYS PHB
CPU0   PHB PHB PHB PHB SYS SYS SYS SYS PHB PHB PHB PHB SYS SYS SYS SYS PHB SYS LOC SYS
CPU1   SYS SYS SYS SYS PHB PHB PHB PHB SYS SYS SYS SYS PHB PHB PHB PHB SYS PHB SYS LOC
`},
	"workstation": {topologytest.Workstation, `
GPU0   LOC PHB SYS SYS PHB PHB SYS
GPU1   PHB LOC SYS SYS PHB PHB SYS
GPU2   SYS SYS LOC PHB SYS SYS PHB
GPU3   SYS SYS PHB LOC SYS SYS PHB
eno1   PHB PHB SYS SYS LOC PHB SYS
CPU0   PHB PHB SYS SYS PHB LOC SYS
CPU1   SYS SYS PHB PHB SYS SYS LOC
`},
	"cloud VM": {topologytest.CloudVM, `
GPU0   LOC NVL PHB SYS SYS PHB
GPU1   NVL LOC PHB SYS SYS PHB
eth0   PHB PHB LOC SYS SYS PHB
CPU0   SYS SYS SYS LOC SYS SYS
CPU1   SYS SYS SYS SYS LOC SYS
CPU-1  PHB PHB PHB SYS SYS LOC
`},
	"no GPU": {topologytest.NoGPU, `
eth0   LOC PHB
CPU0   PHB LOC
`},
}

// system is a machine of the table as it is read, once for all tests.
func system(t testing.TB, name string) *topology.System {
	t.Helper()
	if read[name] == nil {
		read[name] = machines[name].make(t).System()
	}
	return read[name]
}

var read = map[string]*topology.System{}

// nodes are the devices of a machine, in the order of the tables above.
func nodes(s *topology.System) (list []topology.Node, names []string) {
	for _, g := range s.GPUs {
		list, names = append(list, g), append(names, fmt.Sprintf("GPU%d", g.Index))
	}
	for _, n := range s.NICs {
		list, names = append(list, n), append(names, n.Name)
	}
	for _, c := range s.CPUs {
		list, names = append(list, c), append(names, fmt.Sprintf("CPU%d", c.Node))
	}
	return list, names
}

func table(s *topology.System) string {
	list, names := nodes(s)
	var b strings.Builder
	b.WriteByte('\n')
	for i, from := range list {
		fmt.Fprintf(&b, "%-6s", names[i])
		for _, to := range list {
			fmt.Fprintf(&b, " %s", s.Path(from, to))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestPaths(t *testing.T) {
	for name, m := range machines {
		t.Run(name, func(t *testing.T) {
			s := system(t, name)
			if got := table(s); got != m.paths {
				t.Errorf("paths are%swant%s", got, m.paths)
			}
			if len(s.Problems) > 0 {
				t.Errorf("problems: %q", s.Problems)
			}
		})
	}
}

// TestXMLKeepsTheMachine writes each machine, reads it, and compares all that the
// format holds; what is written of the copy is the same text.
func TestXMLKeepsTheMachine(t *testing.T) {
	for name, m := range machines {
		t.Run(name, func(t *testing.T) {
			s := system(t, name)
			again, err := topology.ParseXML([]byte(s.XML()))
			if err != nil {
				t.Fatal(err)
			}
			if got := table(again); got != m.paths {
				t.Errorf("paths are%swant%s", got, m.paths)
			}
			if got, want := again.XML(), s.XML(); got != want {
				t.Errorf("written again:\n%s\nwant\n%s", got, want)
			}
			for i, g := range s.GPUs {
				if again.GPUs[i].Name != g.Name || again.GPUs[i].PCI.BusID != g.PCI.BusID {
					t.Errorf("GPU %d is %s at %s, want %s at %s", i, again.GPUs[i].Name, again.GPUs[i].PCI.BusID, g.Name, g.PCI.BusID)
				}
				for j, n := range s.NICs {
					if got, want := again.Rate(again.GPUs[i], again.NICs[j]), s.Rate(g, n); got != want {
						t.Errorf("GPU %d to %s: %g GB/s, want %g", i, n.Name, got, want)
					}
				}
			}
			for i, c := range s.CPUs {
				if got := again.CPUs[i]; got.Node != c.Node || got.Cores != c.Cores || got.Model != c.Model {
					t.Errorf("CPU %d is %+v, want %+v", i, got, c)
				}
			}
			for i, n := range s.NICs {
				if got := again.NICs[i]; got.Mbps() != n.Mbps() || got.Active() != n.Active() || fmt.Sprint(got.RDMA) != withoutVerbs(n.RDMA) {
					t.Errorf("card %d is %+v, want %+v", i, got, n)
				}
			}
		})
	}
}

func withoutVerbs(list []topology.RDMA) string {
	list = slices.Clone(list)
	for i := range list {
		list[i].Verbs = ""
	}
	return fmt.Sprint(list)
}
