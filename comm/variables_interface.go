package comm

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

// interfaceRule is NCCL_SOCKET_IFNAME: eth,ib are beginnings of names, =eth0 are whole
// names, and ^ before either means all others.
type interfaceRule struct {
	exclude, whole bool
	names          []string
}

func parseInterfaces(text string) (r interfaceRule, err error) {
	list, exclude := strings.CutPrefix(text, "^")
	list, whole := strings.CutPrefix(list, "=")
	r.exclude, r.whole = exclude, whole
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" || strings.ContainsAny(name, "^= /") {
			return r, fmt.Errorf("want names of interfaces or their beginnings, such as eth0,ib, =eth0 or ^docker,veth; %q is none", name)
		}
		r.names = append(r.names, name)
	}
	return r, nil
}

func (r *interfaceRule) matches(name string) bool {
	for _, n := range r.names {
		if r.whole && name == n || !r.whole && strings.HasPrefix(name, n) {
			return !r.exclude
		}
	}
	return r.exclude
}

// card is a network interface that other hosts may reach.
type card struct {
	name    string
	virtual bool // no hardware behind it
	idle    bool // no carrier
}

// cards lists those that are up and have an address that is not of this host alone.
func cards() (all []card, err error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || !global(i) {
			continue
		}
		_, err := os.Stat("/sys/class/net/" + i.Name + "/device")
		all = append(all, card{i.Name, err != nil, i.Flags&net.FlagRunning == 0})
	}
	return all, nil
}

func global(i net.Interface) bool {
	addrs, err := i.Addrs()
	if err != nil {
		return false // it has just gone
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().IsGlobalUnicast() {
				return true
			}
		}
	}
	return false
}

// interfaceOf is the name of an interface that is given by its name or an address of it.
func interfaceOf(text string) (string, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text, nil
	}
	list, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("listing the network interfaces: %w", err)
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.IP(addr.AsSlice())) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface of this host has the address %s", text)
}

// choose is the interface that the rule leaves: of several one with a carrier, then one
// with hardware behind it, then the first. "" where the rule leaves loopback alone,
// which ranks of one host use anyway.
func (r *interfaceRule) choose(all []card, near bool) (string, error) {
	best, least := "", 0
	var names []string
	for _, c := range all {
		names = append(names, c.name)
		if !r.matches(c.name) {
			continue
		}
		worse := 1
		if c.virtual {
			worse++
		}
		if c.idle {
			worse += 2
		}
		if best == "" || worse < least {
			best, least = c.name, worse
		}
	}
	if best == "" && !(near && r.matches("lo")) {
		return "", fmt.Errorf("no interface that is up, and has an address that other hosts may reach, matches; this host has %v", names)
	}
	return best, nil
}
