package doctor

import (
	"errors"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gorun-dev/gorun/runtime/topology"
)

// system is what the machine is made of, read once.
func (m *Machine) system() (*topology.System, error) {
	if m.sys == nil {
		s, err := topology.Read(m.Root, nil)
		if err != nil {
			return nil, err
		}
		m.sys = s
	}
	return m.sys, nil
}

// errNoPeers is why checks of PCIe have nothing to look at.
var errNoPeers = errors.New("no two devices here talk to each other over PCIe (GPUs, or a GPU and an RDMA card)")

// directPeers are the devices between which data could go without the processor: GPUs
// and RDMA cards; errNoPeers where there are not two, or none is a GPU.
func (m *Machine) directPeers() (peers []*topology.PCI, err error) {
	s, err := m.system()
	if err != nil {
		return nil, err
	}
	for _, g := range s.GPUs {
		peers = append(peers, g.PCI)
	}
	for _, n := range s.NICs {
		if n.PCI != nil && len(n.RDMA) > 0 {
			peers = append(peers, n.PCI)
		}
	}
	if len(s.GPUs) == 0 || len(peers) < 2 {
		return nil, errNoPeers
	}
	return peers, nil
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciOf is the address of the PCI device that an entry of /sys lies below, the nearest
// one: a device of virtio is in between; "" without.
func (m *Machine) pciOf(elem ...string) string {
	real, err := filepath.EvalSymlinks(m.path(elem...))
	if err != nil {
		return ""
	}
	parts := strings.Split(real, string(filepath.Separator))
	for i := len(parts) - 1; i >= 0; i-- {
		if pciAddress.MatchString(parts[i]) {
			return parts[i]
		}
	}
	return ""
}
