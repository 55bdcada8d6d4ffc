package topology

// Path is how two devices reach each other, by NCCL's name for it. NCCL has numbered
// them differently over its releases, so the name is what counts; compare with
// Within.
type Path string

// The paths, near before far.
const (
	LOC Path = "LOC" // the same device
	NVL Path = "NVL" // NVLink, direct or through NVSwitches
	NVB Path = "NVB" // NVLink by way of another GPU
	C2C Path = "C2C" // the chip-to-chip link between a GPU and its CPU
	PIX Path = "PIX" // at most one PCIe switch
	PXB Path = "PXB" // several PCIe switches, but no CPU
	P2C Path = "P2C" // chip-to-chip to the CPU, then PCIe to a network card there
	PHB Path = "PHB" // PCIe through a CPU, within a NUMA node
	SYS Path = "SYS" // between NUMA nodes
	NET Path = "NET" // between machines
	DIS Path = "DIS" // not connected
)

var paths = []Path{LOC, NVL, NVB, C2C, PIX, PXB, P2C, PHB, SYS, NET, DIS}

// What is worse is a number here, for comparisons.
const (
	loc = iota
	nvl
	nvb
	c2c
	pix
	pxb
	p2c
	phb
	sys
	network
	dis
)

// Within says that p is as near as limit, or nearer: PIX is within PXB.
func (p Path) Within(limit Path) bool { return p.rank() <= limit.rank() }

func (p Path) rank() int {
	for i, q := range paths {
		if p == q {
			return i
		}
	}
	return dis
}
