package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// acs looks for PCIe bridges that send what goes from one device to another up to the
// root (Access Control Services): transfers between GPUs and cards are slow then, hang,
// or bring wrong data.
type acs struct{}

func (acs) name() string { return "acs" }

// Where ACS stands in a bridge's configuration space: a list of extended capabilities
// begins behind the first 256 bytes; each holds its id in 16 bits, a version in 4, and
// where the next is in 12. The control register is 6 bytes into ours.
const (
	extendedStart = 0x100
	acsID         = 0x000d
	acsControl    = 6

	acsRequestRedirect    = 1 << 2
	acsCompletionRedirect = 1 << 3
)

func (acs) look(_ context.Context, m *Machine) ([]Finding, error) {
	peers, err := m.directPeers()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var on, off []string
	for _, d := range peers {
		for _, bridge := range d.Bridges {
			if seen[bridge] {
				continue
			}
			seen[bridge] = true
			control, err := m.acsControl(bridge)
			if err != nil {
				return nil, err
			}
			if control&(acsRequestRedirect|acsCompletionRedirect) != 0 {
				on = append(on, fmt.Sprintf("%s (control %#04x)", bridge, control))
			} else {
				off = append(off, bridge)
			}
		}
	}
	if len(on) == 0 {
		return nil, nil
	}
	first, _, _ := strings.Cut(on[0], " ")
	return []Finding{{
		Severity: Warning, Where: Where{Device: first},
		What:     fmt.Sprintf("%s above GPUs or RDMA cards redirect what goes between devices to the root (ACS): it is slow, and on some machines hangs or brings wrong data", plural(len(on), "PCIe bridge")),
		Evidence: fmt.Sprintf("with redirection: %s; without: %s", strings.Join(on, ", "), orNone(off)),
		Fix:      "turn ACS off in the firmware's settings, or for each of these bridges: setpci -s ADDRESS ECAP_ACS+0x6.w=0000 after each boot; virtual machines need it on",
	}}, nil
}

// acsControl reads a bridge's control register; 0 where it has no such capability.
func (m *Machine) acsControl(bridge string) (uint16, error) {
	name := m.path("sys/bus/pci/devices", bridge, "config")
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	if len(b) < extendedStart {
		return 0, fmt.Errorf("%s: %d bytes can be read, and ACS stands behind the first %d: run gorun doctor as root", name, len(b), extendedStart)
	}
	// A list that leads in a circle would be longer than the space has words.
	for at, steps := extendedStart, 0; at >= extendedStart && at+8 <= len(b) && steps < len(b)/4; steps++ {
		head := binary.LittleEndian.Uint32(b[at:])
		if head&0xffff == acsID {
			return binary.LittleEndian.Uint16(b[at+acsControl:]), nil
		}
		at = int(head >> 20)
	}
	return 0, nil
}
