package rdma

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// host is a machine with RDMA devices whose verbs are those of a fabric.
type host struct {
	*topology.System
	api *verbs.API
}

func newHost(t *testing.T, m *topologytest.Machine) host {
	s, api := m.System(), newFabric(t).API()
	var names []string
	for _, n := range s.NICs {
		for _, r := range n.RDMA {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	api.Devices = func() ([]string, error) { return names, nil }
	return host{s, api}
}

// taken is the ports of ranks with these GPUs, or on these NUMA nodes; nil is neither.
func (h host) taken(t *testing.T, s Settings, ranks ...topology.Node) (ports string, near []Near) {
	t.Helper()
	for _, of := range ranks {
		n, err := Nearest(h.api, s, Spot{h.System, of, "its place"})
		if err != nil {
			t.Fatal(err)
		}
		near = append(near, n)
	}
	return strings.ReplaceAll(strings.Join(Share(near), " "), ":1", ""), near
}

func gpus(s *topology.System, list ...int) (nodes []topology.Node) {
	for _, i := range list {
		nodes = append(nodes, s.GPUs[i])
	}
	return nodes
}

// withCards gives the 4x4090 two cards: both below CPU 0, or one below each.
func withCards(t *testing.T, nodes ...int) *topologytest.Machine {
	m := topologytest.Workstation(t)
	for i, node := range nodes {
		root := 0x20 + 0x40*i
		card := m.Device(topologytest.PCI{Where: fmt.Sprintf("pci0000:%02x/0000:%02x:01.1/0000:%02x:00.0", root, root, root+1),
			Class: "0x020000", Vendor: "0x15b3", Device: "0x101d", Node: node, Speed: "16.0 GT/s PCIe", Width: 16})
		m.RDMA(card, topology.RDMA{Name: fmt.Sprintf("mlx5_%d", i), Ports: []topology.Port{{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Mbps: 100000}}})
	}
	return m
}

func TestWhichPort(t *testing.T) {
	dgx := newHost(t, topologytest.DGXH100(t))
	apart, together := newHost(t, withCards(t, 0, 1)), newHost(t, withCards(t, 0, 0))
	cloud := topologytest.CloudVM(t)
	for i := range 2 {
		cloud.RDMA("", topology.RDMA{Name: fmt.Sprintf("rxe%d", i), Ports: []topology.Port{{Number: 1, State: "ACTIVE", Mbps: 10000}}})
	}
	vm := newHost(t, cloud)
	node := func(h host, n int) topology.Node { return h.CPUs[n] }
	for name, c := range map[string]struct {
		h     host
		hca   string
		ranks []topology.Node
		ports string
		path  topology.Path // of the first rank
	}{
		"each GPU its own": {dgx, "", gpus(dgx.System, 0, 1, 2, 3, 4, 5, 6, 7), "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7", topology.PXB},
		"in any order":     {dgx, "", gpus(dgx.System, 6, 1), "mlx5_6 mlx5_1", topology.PXB},
		"two on a GPU":     {dgx, "", gpus(dgx.System, 6, 6), "mlx5_6 mlx5_6", topology.PXB},
		// Without its own card a GPU goes to one of its socket, the fast ones first.
		"its card is excluded": {dgx, "^mlx5_6", gpus(dgx.System, 4, 5, 6, 7), "mlx5_4 mlx5_5 mlx5_4 mlx5_7", topology.PXB},
		"none of its socket":   {dgx, "=mlx5_1,mlx5_2", gpus(dgx.System, 4, 5, 6, 7), "mlx5_1 mlx5_2 mlx5_1 mlx5_2", topology.SYS},
		"for storage alone":    {dgx, "mlx5_8,mlx5_9", gpus(dgx.System, 3, 4), "mlx5_8 mlx5_9", topology.PHB},
		"bound to node 1":      {dgx, "", slices.Repeat([]topology.Node{node(dgx, 1)}, 5), "mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_4", topology.PHB},
		"bound to each":        {dgx, "", []topology.Node{node(dgx, 1), node(dgx, 0), node(dgx, 1)}, "mlx5_4 mlx5_0 mlx5_5", topology.PHB},
		"not bound":            {apart, "", []topology.Node{nil, nil, nil}, "mlx5_0 mlx5_1 mlx5_0", ""},
		"a card a socket":      {apart, "", gpus(apart.System, 0, 1, 2, 3), "mlx5_0 mlx5_0 mlx5_1 mlx5_1", topology.PHB},
		"cards of one socket":  {together, "", gpus(together.System, 0, 1, 2, 3), "mlx5_0 mlx5_1 mlx5_0 mlx5_1", topology.PHB},
		"of the other socket":  {together, "", gpus(together.System, 2, 3), "mlx5_0 mlx5_1", topology.SYS},
		// Who can go nowhere else goes first.
		"some choose":            {apart, "", []topology.Node{nil, apart.GPUs[0]}, "mlx5_1 mlx5_0", ""},
		"software, nodes hidden": {vm, "", gpus(vm.System, 0, 1), "rxe0 rxe1", topology.SYS},
	} {
		ports, near := c.h.taken(t, Settings{HCA: c.hca}, c.ranks...)
		if ports != c.ports || near[0].Path != c.path {
			t.Errorf("%s: %s, path %q of %+v; want %s, path %q", name, ports, near[0].Path, near[0], c.ports, c.path)
		}
	}
}

// What is told says why, and ports of which the machine knows no path are all as near.
func TestWhyAPort(t *testing.T) {
	h := newHost(t, withCards(t, 0, 0))
	for _, c := range []struct {
		of   topology.Node
		hca  string
		want string
	}{
		{h.GPUs[0], "=mlx5_1", "nearest to its place"},
		{h.GPUs[0], "", "nearest to its place; shared out in turn: mlx5_0:1, mlx5_1:1"},
		{nil, "", "no port is nearest: its place; shared out in turn: mlx5_0:1, mlx5_1:1"},
	} {
		if _, near := h.taken(t, Settings{HCA: c.hca}, c.of); near[0].Why != c.want {
			t.Errorf("%q, want %q", near[0].Why, c.want)
		}
	}
	h.api = newFabric(t).API() // fake0 and fake1, of which /sys knows nothing
	ports, near := h.taken(t, Settings{}, h.GPUs[0], h.GPUs[1])
	if want := "no port is nearest: its place, to which no path is known; shared out in turn: fake0:1, fake1:1"; ports != "fake0 fake1" || near[0].Path != "" || near[0].Why != want {
		t.Errorf("%s, %+v, want %q", ports, near[0], want)
	}
	if _, err := Nearest(h.api, Settings{HCA: "none"}, Spot{}); !errors.Is(err, ErrNone) {
		t.Errorf("of no port: %v", err)
	}
}

// A port that is gone when the ranks join is not silently another one.
func TestPortThatIsGone(t *testing.T) {
	ports, err := usable(newFabric(t).API(), Settings{HCA: "fake1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pick(ports, "fake0:1"); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "fake0:1, which this rank has chosen, is usable no more; fake1:1 is") {
		t.Errorf("got %v", err)
	}
	if p, err := pick(ports, "fake1:1"); err != nil || p.Device != "fake1" {
		t.Errorf("got %v, %v", p, err)
	}
}
