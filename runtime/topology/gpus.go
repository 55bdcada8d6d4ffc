package topology

import "strings"

// NVML is what Read asks NVIDIA's management library; Library has it, and tests have
// fakes.
type NVML interface {
	// Devices are the GPUs that this process may see, by index. With GPUs, an error says
	// what of them is not known.
	Devices() ([]Device, error)
	// P2P says whether GPU a may reach memory of GPU b.
	P2P(a, b int) (P2P, error)
}

// Device is a GPU as NVML shows it.
type Device struct {
	BusID   string // in any spelling
	Name    string
	Compute int // 90 for 9.0
	// NVLinks that are up: the address at the other end of each, "" where a virtual
	// machine hides it.
	NVLinks []string
	C2C     int // links to the CPU beside PCIe
	C2CRate int // MB/s of each
}

const nvidia = "0x10de"

func (r *reader) readGPUs(nvml NVML) {
	if nvml == nil {
		for i, busID := range r.gpusOnPCI() {
			r.sys.GPUs = append(r.sys.GPUs, &GPU{Index: i, PCI: r.device(busID), guessed: true})
		}
		return
	}
	devices, err := nvml.Devices()
	if err != nil && len(devices) == 0 {
		r.problem("the GPUs' names, their NVLinks and whether they reach each other are not known: %v", err)
		r.readGPUs(nil)
		return
	} else if err != nil {
		r.problem("not everything of the GPUs is known: %v", err)
	}
	for i, d := range devices {
		g := &GPU{Index: i, Name: d.Name, Compute: d.Compute, PCI: r.device(normalBusID(d.BusID)), C2C: d.C2C, C2CRate: d.C2CRate}
		if g.PCI.Class == "" { // /sys does not show it
			g.PCI.Class, g.PCI.Vendor = "0x030200", nvidia
		}
		if g.NVLinks = r.links[g.PCI]; g.NVLinks == nil {
			for _, target := range d.NVLinks {
				r.addNVLink(g, target)
			}
		}
		r.sys.GPUs = append(r.sys.GPUs, g)
	}
	if unseen := len(r.gpusOnPCI()) - len(devices); unseen > 0 {
		r.problem("PCI shows %d more NVIDIA GPUs than the driver lets this process see; they are left out", unseen)
	}
	r.readP2P(nvml)
}

// gpusOnPCI are the addresses of NVIDIA's display and compute devices.
func (r *reader) gpusOnPCI() []string {
	var found []string
	for _, busID := range r.list("sys/bus/pci/devices") {
		if r.text("sys/bus/pci/devices", busID, "vendor") == nvidia &&
			strings.HasPrefix(r.text("sys/bus/pci/devices", busID, "class"), classGPU) {
			found = append(found, busID)
		}
	}
	return found
}

// addNVLink counts a link. What is at its other end says the class of the PCI device
// there; one that is not to be seen is an NVSwitch.
func (r *reader) addNVLink(g *GPU, target string) {
	class := classNVSwitch
	if target == "" {
		target = hidden
	} else {
		target = normalBusID(target)
		if c := r.text("sys/bus/pci/devices", target, "class"); c != "" {
			class = c
		}
	}
	for i := range g.NVLinks {
		if g.NVLinks[i].Target == target {
			g.NVLinks[i].Count++
			return
		}
	}
	g.NVLinks = append(g.NVLinks, NVLink{target, class, 1})
}

func (r *reader) readP2P(nvml NVML) {
	r.sys.p2p = map[[2]int]P2P{}
	for a := range r.sys.GPUs {
		for b := range r.sys.GPUs {
			if a == b {
				continue
			}
			p, err := nvml.P2P(a, b)
			if err != nil {
				r.problem("whether GPU%d reaches the memory of GPU%d is not known: %v", a, b, err)
				continue
			}
			r.sys.p2p[[2]int{a, b}] = p
		}
	}
}
