package topology_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/topology"
	"github.com/gorun-dev/gorun/runtime/topology/topologytest"
)

// The class of the path goes first, speed second, and what is left is in the order given.
func TestNearest(t *testing.T) {
	s := sketch(t, `
cpu 0
  pci 01
    pci 10
      gpu 0 90
    pci 11
      net pix 25000
    pci 02
      pci 12
        net pxb 400000
  pci 13
    net slow 100000
  pci 14
    net phb 200000
  pci 15
    net twin 200000
cpu 1
  pci 16
    gpu 1 90
  pci 17
    net other 25000
`)
	for _, c := range []struct {
		of    topology.Node
		cards string
		want  string
	}{
		{s.GPUs[0], "twin other phb pxb pix slow", "[pix] PIX"},
		{s.GPUs[0], "other twin phb pxb slow", "[pxb] PXB"},
		{s.GPUs[0], "other slow twin phb", "[twin phb] PHB"},
		{s.GPUs[0], "slow other", "[slow] PHB"},
		{s.GPUs[0], "other", "[other] SYS"},
		{s.GPUs[1], "pix pxb other", "[other] PHB"},
		{s.CPUs[0], "pix pxb phb other slow twin", "[pxb phb twin] PHB"}, // PCIe is slower than 400 Gbit/s
		{s.CPUs[1], "phb twin", "[phb twin] SYS"},
		{s.CPUs[1], "", "[] DIS"},
	} {
		var cards []*topology.NIC
		for _, name := range strings.Fields(c.cards) {
			cards = append(cards, s.NIC(name))
		}
		near, path := s.Nearest(c.of, cards)
		var names []string
		for _, n := range near {
			names = append(names, n.Name)
		}
		if got := fmt.Sprint(names, " ", path); got != c.want {
			t.Errorf("of %q: %s, want %s", c.cards, got, c.want)
		}
	}
	if near, path := s.Nearest(sketch(t, "cpu 0\n  pci 01\n    gpu 0 90\n").GPUs[0], s.NICs); len(near) > 0 || path != topology.DIS {
		t.Errorf("to a GPU of another machine: %v, %s", near, path)
	}
}

func TestNodeOf(t *testing.T) {
	s := topologytest.DGXH100(t).System()
	interleaved := topologytest.New(t)
	interleaved.CPUs(topologytest.Processor{Vendor: "GenuineIntel", Family: 6, Model: 143}, 2, 4)
	interleaved.Write("sys/devices/system/node/node0/cpulist", "0,2,4-5")
	interleaved.Write("sys/devices/system/node/node1/cpulist", "1,3,6-7")
	for _, c := range []struct {
		s     *topology.System
		cores []int
		want  int // -1: none
	}{
		{s, []int{0}, 0}, {s, []int{0, 55}, 0}, {s, []int{56, 111}, 1}, {s, []int{55, 56}, -1}, {s, []int{112}, -1}, {s, nil, -1},
		{interleaved.System(), []int{2, 4, 5}, 0}, {interleaved.System(), []int{3, 6}, 1}, {interleaved.System(), []int{2, 3}, -1},
	} {
		got := -1
		if n := c.s.NodeOf(c.cores); n != nil {
			got = n.Node
		}
		if got != c.want {
			t.Errorf("cores %v are of node %d, want %d", c.cores, got, c.want)
		}
	}
}
