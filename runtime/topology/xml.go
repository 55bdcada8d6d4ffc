package topology

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The format is NCCL's: system > cpu > pci > ... > gpu or nic, nic > net, gpu >
// nvlink or c2c, pci > pcilink. Attributes that we have no use for are kept and
// written again. Beside NCCL's own we write some that it skips: the name of a gpu,
// and of a net the interfaces' names and its state.

const formatVersion = "1"

// longestFile bounds what is read of a file. A machine takes some kilobytes.
const longestFile = 64 << 20

// ReadFile reads a machine from a file in NCCL's format. It takes what NCCL takes;
// the error names the file, and where it can the line. Such a file may tell no more
// than where devices are, by their addresses and classes: a GPU then has no name, and is
// numbered by its address, and a network card has its address for a name.
func ReadFile(path string) (*System, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, longestFile))
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	if len(text) == longestFile {
		return nil, fmt.Errorf("topology: %s is no topology in NCCL's format: it is longer than %d MiB", path, longestFile>>20)
	}
	s, err := ParseXML(text)
	if err != nil {
		return nil, fmt.Errorf("topology: %s is no topology in NCCL's format: %w", path, err)
	}
	return s, nil
}

// ParseXML is ReadFile for the contents of a file in NCCL's format.
func ParseXML(text []byte) (*System, error) {
	top, err := parseXML(text)
	if err != nil {
		return nil, err
	}
	d := &decoder{sys: &System{pci: []*PCI{}}}
	d.system(top)
	if d.err != nil {
		return nil, d.err
	}
	d.sys.numberGuessed()
	d.sys.sorted()
	d.sys.connect()
	return d.sys, nil
}

// decoder makes a System of elements. It stops at the first error.
type decoder struct {
	sys *System
	err error
}

func (d *decoder) fail(e *element, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("line %d: <%s> %s", e.line, e.name, fmt.Sprintf(format, args...))
	}
}

// use takes attributes out of e: those that have a meaning here. What is left is kept
// as it is.
type use struct {
	d    *decoder
	e    *element
	seen map[string]bool
}

func (d *decoder) using(e *element) *use { return &use{d, e, map[string]bool{}} }

func (u *use) text(name string) string {
	u.seen[name] = true
	v, _ := u.e.value(name)
	return v
}

func (u *use) must(name string) string {
	v := u.text(name)
	if v == "" {
		u.d.fail(u.e, "has no %s", name)
	}
	return v
}

func (u *use) number(name string, otherwise int) int {
	v := u.text(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 0, 32)
	if err != nil {
		u.d.fail(u.e, "has %s=%q, which is no whole number", name, v)
	}
	return int(n)
}

// count is number for what there cannot be less than none of.
func (u *use) count(name string, otherwise int) int {
	n := u.number(name, otherwise)
	if n < 0 {
		u.d.fail(u.e, "has %s=%d, want 0 or more", name, n)
	}
	return max(n, 0)
}

func (u *use) rest() (left []attr) {
	for _, a := range u.e.attrs {
		if !u.seen[a.name] {
			left = append(left, a)
		}
	}
	return left
}

func (d *decoder) system(e *element) {
	if e.name != "system" {
		d.fail(e, "is the outermost element, want <system>")
		return
	}
	u := d.using(e)
	if v := u.text("version"); v != formatVersion {
		d.fail(e, "has version %q, want %s", v, formatVersion)
	}
	d.sys.name = u.text("name")
	for _, sub := range e.subs {
		if sub.name == "cpu" {
			d.cpu(sub)
		}
	}
	if len(d.sys.CPUs) == 0 {
		d.fail(e, "has no <cpu>")
	}
}

func (d *decoder) cpu(e *element) {
	u := d.using(e)
	u.must("numaid")
	c := &CPU{
		Node: u.number("numaid", -1), Affinity: u.text("affinity"), host: u.text("host_hash"),
		Arch: u.text("arch"), Vendor: u.text("vendor"), Family: u.number("familyid", 0), Model: u.number("modelid", 0),
	}
	c.Cores = coresOf(c.Affinity)
	c.other = u.rest()
	for _, old := range d.sys.CPUs {
		if old.Node == c.Node && old.host == c.host {
			d.fail(e, "with numaid %d comes twice", c.Node)
		}
	}
	d.sys.CPUs = append(d.sys.CPUs, c)
	for _, sub := range e.subs {
		switch sub.name {
		case "pci":
			d.pci(sub, c, nil)
		case "nic":
			d.nic(sub, c, nil)
		}
	}
}

func (d *decoder) pci(e *element, c *CPU, parent *PCI) {
	u := d.using(e)
	p := &PCI{
		BusID: normalBusID(u.must("busid")), Class: u.text("class"),
		Vendor: u.text("vendor"), Device: u.text("device"), SubVendor: u.text("subsystem_vendor"), SubDevice: u.text("subsystem_device"),
		LinkSpeed: u.text("link_speed"), LinkWidth: u.count("link_width", 0), Parent: parent, CPU: c,
	}
	if p.BusID != "" && !isBusID(p.BusID) {
		d.fail(e, "has busid=%q, which is no PCI address such as 0000:17:00.0", p.BusID)
	}
	p.other = u.rest()
	for _, old := range d.sys.pci {
		if old.BusID == p.BusID && old.CPU.host == c.host {
			d.fail(e, "with busid %s comes twice", p.BusID)
		}
	}
	d.sys.pci = append(d.sys.pci, p)
	if len(e.subs) == 0 { // whoever runs there finds out what it is
		switch {
		case strings.HasPrefix(p.Class, classGPU):
			d.sys.GPUs = append(d.sys.GPUs, &GPU{PCI: p, guessed: true})
		case strings.HasPrefix(p.Class, classNIC):
			d.sys.NICs = append(d.sys.NICs, &NIC{Name: p.BusID, PCI: p, CPU: c})
		}
	}
	for _, sub := range e.subs {
		switch sub.name {
		case "pci":
			d.pci(sub, c, p)
		case "gpu":
			d.gpu(sub, p)
		case "nic":
			d.nic(sub, c, p)
		case "pcilink":
			p.links = append(p.links, normalBusID(d.using(sub).must("target")))
		}
	}
}

func (d *decoder) gpu(e *element, p *PCI) {
	u := d.using(e)
	g := &GPU{Index: u.count("dev", 0), guessed: u.text("dev") == "", Compute: u.count("sm", 0), Name: u.text("name"), PCI: p}
	g.other = u.rest()
	for _, old := range d.sys.GPUs {
		if old.PCI == p || !g.guessed && !old.guessed && old.Index == g.Index && old.PCI.CPU.host == p.CPU.host {
			d.fail(e, "with dev %d comes twice", g.Index)
		}
	}
	for _, sub := range e.subs {
		u := d.using(sub)
		switch sub.name {
		case "nvlink":
			l := NVLink{Target: normalBusID(u.must("target")), Count: u.count("count", 1), Class: u.text("tclass")}
			if l.Class == "" {
				l.Class = classNVSwitch
			}
			g.NVLinks = append(g.NVLinks, l)
		case "c2c":
			g.C2C, g.C2CRate = u.count("count", 0), u.count("bw", 0)
		}
	}
	d.sys.GPUs = append(d.sys.GPUs, g)
}

// nic makes a card of an element. What is not on PCIe is a card for each net, for
// NCCL puts all of them together.
func (d *decoder) nic(e *element, c *CPU, p *PCI) {
	var cards []*NIC
	for _, sub := range e.subs {
		if sub.name != "net" {
			continue
		}
		name, _ := sub.value("name")
		i := slices.IndexFunc(cards, func(n *NIC) bool { return p != nil || n.nets[0].named(name) })
		if i < 0 {
			i = len(cards)
			cards = append(cards, &NIC{PCI: p, CPU: c})
		}
		d.net(sub, cards[i])
	}
	for _, n := range cards {
		n.Virtual = p == nil && len(n.RDMA) > 0
		n.name()
	}
	d.sys.NICs = append(d.sys.NICs, cards...)
}
