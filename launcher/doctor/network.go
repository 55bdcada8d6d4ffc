package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Interface is a network interface of a host.
type Interface struct {
	Name    string         `json:"name"`
	Index   int            `json:"index"`
	Up      bool           `json:"up"`      // set up, by whoever administers the host
	Carrier bool           `json:"carrier"` // a cable, and somebody at its other end
	MTU     int            `json:"mtu"`
	Speed   int            `json:"speed,omitempty"`  // Mbit/s; 0 where it has none or does not tell
	Driver  string         `json:"driver,omitempty"` // "" for a virtual one
	PCI     string         `json:"pci,omitempty"`    // address of its device
	Kind    string         `json:"kind"`             // hardware, loopback, bridge, bond, vlan, tun, veth, or virtual
	Addrs   []netip.Prefix `json:"addrs"`
}

// The kinds that the code tells apart.
const (
	hardware = "hardware"
	loopback = "loopback"
)

// flags of an interface, as /sys/class/net/NAME/flags holds them.
const (
	flagUp       = 1
	flagLoopback = 8
)

// real says whether a network card carries it: a card itself, a bond of cards, or a
// VLAN on one.
func (i Interface) real() bool {
	return i.Kind == hardware || i.Kind == "bond" || i.Kind == "vlan"
}

// reachable are the addresses that another host may reach.
func (i Interface) reachable() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(i.Addrs), func(p netip.Prefix) bool { return !p.Addr().IsGlobalUnicast() })
}

// usable says whether other hosts may be told of it.
func (i Interface) usable() bool { return i.Up && i.Kind != loopback && len(i.reachable()) > 0 }

// describe says what it is in a few words.
func (i Interface) describe() string {
	parts := []string{i.Kind}
	if i.Driver != "" {
		parts = append(parts, i.Driver)
	}
	if i.Speed > 0 {
		parts = append(parts, speedText(i.Speed))
	}
	switch {
	case !i.Up:
		parts = append(parts, "down")
	case !i.Carrier:
		parts = append(parts, "no carrier")
	}
	for _, a := range i.Addrs {
		parts = append(parts, a.String())
	}
	return fmt.Sprintf("%s (%s)", i.Name, strings.Join(parts, ", "))
}

func speedText(mbit int) string {
	if mbit >= 1000 {
		return fmt.Sprintf("%g Gbit/s", float64(mbit)/1000)
	}
	return fmt.Sprintf("%d Mbit/s", mbit)
}

// interfaces reads all of them, by index.
func (m *Machine) interfaces() ([]Interface, error) {
	names, err := m.list("sys/class/net")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s shows no network interface, not even loopback: is /sys mounted?", m.path("sys/class/net"))
	}
	addrs, err := m.Addrs()
	if err != nil {
		return nil, err
	}
	var out []Interface
	for _, name := range names {
		if _, here := addrs[name]; !here {
			continue // of another network namespace, whose /sys this is; or it has just come
		}
		flags, err := m.number("sys/class/net", name, "flags")
		if err != nil {
			continue // a file such as bonding_masters, or an interface that has just gone
		}
		i := Interface{Name: name, Up: flags&flagUp != 0, Kind: m.kind(name, flags), Addrs: addrs[name]}
		i.Driver = m.link("sys/class/net", name, "device/driver")
		i.PCI = m.pciOf("sys/class/net", name, "device")
		i.Index = m.optional("sys/class/net", name, "ifindex")
		i.MTU = m.optional("sys/class/net", name, "mtu")
		i.Speed = max(0, m.optional("sys/class/net", name, "speed"))
		i.Carrier = m.optional("sys/class/net", name, "carrier") == 1
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b Interface) int { return cmp.Compare(a.Index, b.Index) })
	return out, nil
}

// optional is a number that the kernel does not tell of every interface: 0 then.
func (m *Machine) optional(elem ...string) int {
	n, err := m.number(elem...)
	if err != nil {
		return 0
	}
	return int(n)
}

// kind tells what an interface is. A pair of veths has no file that says so: its ends
// have each other's index as the one below them, where another interface would be
// linked to.
func (m *Machine) kind(name string, flags int64) string {
	at := func(elem ...string) []string { return append([]string{"sys/class/net", name}, elem...) }
	uevent, _ := m.text(at("uevent")...) // without one, none of the types below
	switch {
	case flags&flagLoopback != 0:
		return loopback
	case m.exists(at("device")...):
		return hardware
	case m.exists(at("bridge")...):
		return "bridge"
	case m.exists(at("bonding")...):
		return "bond"
	case strings.Contains(uevent, "DEVTYPE=vlan"):
		return "vlan"
	case m.exists(at("tun_flags")...):
		return "tun"
	}
	below, _ := filepath.Glob(m.path(at("lower_*")...)) // the pattern is a good one
	if m.optional(at("iflink")...) != m.optional(at("ifindex")...) && len(below) == 0 {
		return "veth"
	}
	return "virtual"
}

// ranked are the interfaces that other hosts may be told of, in the order in which
// gorun's tcp transport has a peer try them where nothing but this host is known: with
// a carrier, with hardware, fast.
func ranked(list []Interface) []Interface {
	list = slices.DeleteFunc(slices.Clone(list), func(i Interface) bool { return !i.usable() })
	first := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b Interface) int {
		return cmp.Or(cmp.Compare(first(a.Carrier), first(b.Carrier)), cmp.Compare(first(a.Kind == hardware), first(b.Kind == hardware)),
			cmp.Compare(b.Speed, a.Speed))
	})
	return list
}

func names(list []Interface) string {
	var out []string
	for _, i := range list {
		out = append(out, i.Name)
	}
	return strings.Join(out, ", ")
}
