package topology

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Local looks at this machine. What of it cannot be found out is in Problems.
func Local() (*System, error) { return LocalWith("") }

// LocalWith is Local with a file, as ReadWith has it.
func LocalWith(file string) (*System, error) {
	nvml, err := OpenNVML()
	if err != nil {
		s, readErr := ReadWith(file, "/", nil)
		if readErr == nil && (len(s.GPUs) > 0 || !errors.Is(err, dl.ErrNotFound)) {
			s.Problems = append(s.Problems, err.Error())
		}
		return s, readErr
	}
	s, readErr := ReadWith(file, "/", nvml)
	if err := nvml.Close(); err != nil && readErr == nil {
		s.Problems = append(s.Problems, err.Error())
	}
	return s, readErr
}

// Read looks at the machine whose /sys and /proc lie below root. Of / it asks the
// kernel itself for network interfaces (netlink) and takes RDMA devices by rdmamap;
// of any other root it reads the same from files.
//
// nvml tells the names of GPUs, NVLinks and P2P; without it (nil) the GPUs are those
// that PCI shows, and nothing is known of how they reach each other but by PCIe.
//
// An error means that root holds no /sys. Anything less is one of the Problems.
func Read(root string, nvml NVML) (*System, error) { return ReadWith("", root, nvml) }

// ReadWith is Read where a file in NCCL's format knows better where PCI devices are,
// as in virtual machines that hide it: switches and NUMA nodes of the devices that it
// names are the file's, and so are NVLinks if it has any. NCCL goes by NCCL_TOPO_FILE
// in the same way. An empty path is no file.
func ReadWith(file, root string, nvml NVML) (*System, error) {
	t := tree(filepath.Clean(root))
	if !t.exists("sys/devices") {
		return nil, fmt.Errorf("topology: %s is not there: mount /sys, or name the folder above a copy of it", t.path("sys/devices"))
	}
	r := &reader{tree: t, sys: &System{}, pci: map[string]*PCI{}, links: map[*PCI][]NVLink{}}
	if file != "" {
		known, err := ReadFile(file)
		if err != nil {
			return nil, err
		}
		r.start(known)
	}
	r.readCPUs()
	r.readGPUs(nvml)
	if t == "/" {
		r.readNetworks(kernel{t})
	} else {
		r.readNetworks(files{t})
	}
	r.readPeerMemory()
	r.dropIdleCPUs()
	r.sys.sorted()
	r.sys.connect()
	return r.sys, nil
}

// reader fills a System.
type reader struct {
	tree
	sys   *System
	pci   map[string]*PCI   // by address
	links map[*PCI][]NVLink // of GPUs, that a file tells
}

// start takes from a file what it knows better.
func (r *reader) start(known *System) {
	r.sys.name, r.sys.CPUs = known.name, known.CPUs
	for _, p := range known.pci {
		r.complete(p, r.real("sys/bus/pci/devices", p.BusID))
		r.pci[p.BusID] = p
	}
	for _, g := range known.GPUs {
		r.links[g.PCI] = g.NVLinks
	}
}

func (r *reader) problem(format string, args ...any) {
	r.sys.Problems = append(r.sys.Problems, fmt.Sprintf(format, args...))
}

// readCPUs lists the NUMA nodes. A kernel without NUMA has one.
func (r *reader) readCPUs() {
	model := r.readModel()
	for _, name := range r.list("sys/devices/system/node") {
		number, ok := strings.CutPrefix(name, "node")
		node, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		c := model
		c.Node = node
		c.Cores = r.text("sys/devices/system/node", name, "cpulist")
		c.Affinity = r.text("sys/devices/system/node", name, "cpumap")
		if i := slices.IndexFunc(r.sys.CPUs, func(x *CPU) bool { return x.Node == node }); i >= 0 {
			r.sys.CPUs[i].fill(c) // the file's
		} else {
			r.sys.CPUs = append(r.sys.CPUs, &c)
		}
	}
	if len(r.sys.CPUs) == 0 {
		c := model
		c.Cores = r.text("sys/devices/system/cpu/online")
		r.sys.CPUs = append(r.sys.CPUs, &c)
	}
}

// fill sets what is not known of c to what from has.
func (c *CPU) fill(from CPU) {
	if c.Affinity == "" {
		c.Cores, c.Affinity = from.Cores, from.Affinity
	}
	if c.Arch == "" {
		c.Arch, c.Vendor, c.Family, c.Model = from.Arch, from.Vendor, from.Family, from.Model
	}
}

// readModel reads what all CPUs have in common.
func (r *reader) readModel() (c CPU) {
	for line := range strings.Lines(r.text("proc/cpuinfo")) {
		key, value, ok := strings.Cut(line, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			if c.Arch != "" {
				break // the first processor ends here
			}
			continue
		}
		n, err := strconv.Atoi(value)
		switch {
		case key == "vendor_id":
			c.Arch, c.Vendor = "x86_64", value
		case key == "cpu family" && err == nil:
			c.Family = n
		case key == "model" && err == nil:
			c.Model = n
		case key == "CPU implementer":
			c.Arch = "arm64"
		}
	}
	return c
}

// cpu is the NUMA node of a number. Systems with one node often do not number it.
func (r *reader) cpu(node int) *CPU {
	if node < 0 && len(r.sys.CPUs) == 1 {
		return r.sys.CPUs[0]
	}
	for _, c := range r.sys.CPUs {
		if c.Node == node {
			return c
		}
	}
	c := *r.sys.CPUs[0]
	c.Node, c.Cores, c.Affinity = max(node, -1), "", ""
	r.sys.CPUs = append(r.sys.CPUs, &c)
	return &c
}

// dropIdleCPUs leaves out nodes of memory alone, if no device is on them.
func (r *reader) dropIdleCPUs() {
	used := map[*CPU]bool{}
	for _, p := range r.pci {
		used[p.CPU] = true
	}
	var kept []*CPU
	for i, c := range r.sys.CPUs {
		if c.Cores != "" || used[c] || i == 0 {
			kept = append(kept, c)
		}
	}
	r.sys.CPUs = kept
}

// device is the PCI device of an address, with the switches above it. One that /sys
// does not show, as in some containers, is on an unknown CPU.
func (r *reader) device(busID string) *PCI {
	where := r.real("sys/bus/pci/devices", busID)
	if p, ok := r.pci[busID]; ok {
		return p
	}
	if where == nil {
		p := &PCI{BusID: busID, CPU: r.cpu(-1)}
		r.pci[busID] = p
		return p
	}
	return r.deviceAt(where)
}

// deviceAt is the device in a folder of /sys/devices. On the way up every other port
// is skipped: a switch has one above and one below, and so does a root port, whose
// other half is the CPU's.
func (r *reader) deviceAt(where []string) *PCI {
	busID := where[len(where)-1]
	if p, ok := r.pci[busID]; ok {
		return p
	}
	p := &PCI{BusID: busID}
	r.pci[busID] = p
	r.complete(p, where)
	above := where[:len(where)-1]
	if n := len(p.Bridges); n >= 2 {
		p.Parent = r.deviceAt(above[:len(above)-1])
		p.CPU = p.Parent.CPU
		return p
	}
	p.CPU = r.cpu(r.number(-1, filepath.Join(where...), "numa_node"))
	return p
}

// complete sets what is not known of p to what its folder of /sys/devices says.
func (r *reader) complete(p *PCI, where []string) {
	if where == nil {
		return
	}
	dir := filepath.Join(where...)
	for name, to := range map[string]*string{
		"class": &p.Class, "vendor": &p.Vendor, "device": &p.Device,
		"subsystem_vendor": &p.SubVendor, "subsystem_device": &p.SubDevice,
	} {
		if *to == "" {
			*to = r.text(dir, name)
		}
	}
	if p.LinkSpeed == "" {
		p.LinkSpeed = r.text(dir, "max_link_speed")
		if port := r.text(dir, "..", "max_link_speed"); gigatransfers(port) > 0 && gigatransfers(port) < gigatransfers(p.LinkSpeed) {
			p.LinkSpeed = port
		}
	}
	if p.LinkWidth == 0 {
		p.LinkWidth = r.number(0, dir, "max_link_width")
		if port := r.number(0, dir, "..", "max_link_width"); port > 0 {
			p.LinkWidth = min(p.LinkWidth, port)
		}
	}
	for _, name := range where[:len(where)-1] {
		if isBusID(name) {
			p.Bridges = append(p.Bridges, name)
		}
	}
}

// readPeerMemory looks for the modules by which RDMA reaches memory of GPUs.
func (r *reader) readPeerMemory() {
	for _, m := range []struct{ name, file string }{
		{"nv_mem", "sys/kernel/mm/memory_peers/nv_mem/version"},
		{"nv_mem_nc", "sys/kernel/mm/memory_peers/nv_mem_nc/version"},
		{"nvidia_peermem", "sys/module/nvidia_peermem/version"},
	} {
		if r.exists(m.file) {
			r.sys.PeerMemory = m.name
		}
	}
}
