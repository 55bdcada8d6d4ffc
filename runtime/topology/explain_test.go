package topology_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// What is said of each machine, whole.
func TestExplain(t *testing.T) {
	for name, want := range map[string]string{
		"DGX H100": `
8 GPUs: GPU0-3 on NUMA node 0, GPU4-7 on NUMA node 1.
GPU0-7 reach each other over NVLink, 18 links each pair (about 371 GB/s in each direction).
GPU0 should use mlx5_0 (PXB, 400 Gbit/s).
GPU1 should use mlx5_1 (PXB, 400 Gbit/s).
GPU2 should use mlx5_2 (PXB, 400 Gbit/s).
GPU3 should use mlx5_3 (PXB, 400 Gbit/s).
GPU4 should use mlx5_4 (PXB, 400 Gbit/s).
GPU5 should use mlx5_5 (PXB, 400 Gbit/s).
GPU6 should use mlx5_6 (PXB, 400 Gbit/s).
GPU7 should use mlx5_7 (PXB, 400 Gbit/s).
GPUDirect RDMA is possible for GPU0 with mlx5_0; GPU1 with mlx5_1; GPU2 with mlx5_2; GPU3 with mlx5_3; GPU4 with mlx5_4; GPU5 with mlx5_5; GPU6 with mlx5_6; GPU7 with mlx5_7.
It is not possible for other pairs: the path is PHB, farther than PXB (32 pairs); the path is SYS, farther than PXB (40 pairs).
nvidia_peermem is loaded, by which network cards reach memory of GPUs.
Virtual interfaces, which are in no matrix: docker0 (bridge, down), lo (loopback, unknown).
`,
		"workstation": `
4 GPUs: GPU0,1 on NUMA node 0, GPU2,3 on NUMA node 1.
No two GPUs are joined by NVLink: they talk over PCIe.
4 pairs of GPUs talk through the link between NUMA nodes (SYS): GPU0,1 | GPU2,3.
In all 6 pairs without NVLink the driver does not let GPUs reach each other's memory (the chipset does not support it): data between them is copied through the host's.
GPU0 should use eno1 (PHB, 10 Gbit/s).
GPU1 should use eno1 (PHB, 10 Gbit/s).
GPU2 should use eno1 (SYS, 10 Gbit/s).
GPU3 should use eno1 (SYS, 10 Gbit/s).
GPUDirect RDMA is possible for no pair of GPU and network card: eno1 has no RDMA device (4 pairs).
Virtual interfaces, which are in no matrix: lo (loopback, unknown).
`,
		"cloud VM": `
2 GPUs.
The system does not tell which NUMA node devices marked ? belong to. Paths through them are counted as through the link between nodes, and ranks cannot be bound to the nearest cores.
GPU0,1 reach each other over NVLink, 12 links each pair (about 240 GB/s in each direction).
GPU0 should use eth0 (PHB, of unknown speed).
GPU1 should use eth0 (PHB, of unknown speed).
GPUDirect RDMA is possible for no pair of GPU and network card: eth0 has no RDMA device (2 pairs).
Virtual interfaces, which are in no matrix: lo (loopback, unknown).
`,
		"no GPU": `
There is no NVIDIA GPU: training runs on the CPU, and ranks talk through shared memory and the network.
Virtual interfaces, which are in no matrix: lo (loopback, unknown).
`,
	} {
		if got := "\n" + strings.Join(system(t, name).Explain(), "\n") + "\n"; got != want {
			t.Errorf("%s: said is%swant%s", name, got, want)
		}
	}
}

// A file does not tell what of the kernel is loaded, nor what is virtual.
func TestExplainOfAFile(t *testing.T) {
	s := system(t, "DGX H100")
	var want []string
	for _, l := range s.Explain() {
		if !strings.HasPrefix(l, "nvidia_peermem") && !strings.HasPrefix(l, "Virtual") {
			want = append(want, l)
		}
	}
	copied, err := topology.ParseXML([]byte(s.XML()))
	if err != nil {
		t.Fatal(err)
	}
	if got := copied.Explain(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMatrix(t *testing.T) {
	m := topologytest.CloudVM(t)
	const want = `      GPU0  GPU1  NIC0  NUMA  Cores
GPU0  X     NV12  PHB   ?
GPU1  NV12  X     PHB   ?
NIC0  PHB   PHB   X     ?

GPU0: NVIDIA A100-SXM4-40GB, compute capability 8.0, 0000:00:04.0
GPU1: NVIDIA A100-SXM4-40GB, compute capability 8.0, 0000:00:05.0
NIC0: eth0; 0000:00:03.0; interface eth0: up, MTU 1460, driver virtio_net; no RDMA

X    itself
NV#  NVLink, # of them in parallel
PHB  PCIe, through the CPU of a NUMA node
`
	if got := m.System().Matrix(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	m.GPUs = nil
	m.Remove("sys/bus/pci/devices")
	m.Remove("sys/class/net")
	if got := m.System().Matrix(); got != "no GPU and no network card\n" {
		t.Errorf("of a machine without either: %s", got)
	}
}
