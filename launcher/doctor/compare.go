package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// property is something that all hosts should have alike.
type property struct {
	check    string
	severity Severity
	what     string // "the versions of gorun"
	of       func(v Inventory) string
	fix      string
}

// properties are those that are compared.
func properties() []property {
	out := []property{
		{"versions", Error, "the versions of gorun", func(v Inventory) string { return v.Gorun }, "install the same gorun on every host: others refuse to join"},
		{"versions", Warning, "the versions of NVIDIA's driver", func(v Inventory) string { return v.Driver }, "install the same driver on every host"},
		{"versions", Note, "the kernels", func(v Inventory) string { return v.Kernel }, "bring the hosts to one release where they behave differently"},
		{"nics", Warning, "the network cards in use", Inventory.cardSet, "the slowest card sets the pace of a ring: use hosts with the same cards, or name the interface that all have (comm.interface)"},
		{"nics", Warning, "the MTUs of the cards in use", mtuSet, "ip link set NAME mtu N: the same on every host of a network; RDMA takes the smaller one, and others may lose packets"},
		{"rdma", Warning, "the RDMA devices", Inventory.rdmaSet, "name those that all hosts have (NCCL_IB_HCA): a host without its peers' devices sits idle, or falls back to TCP"},
		{"cpus", Note, "the cores that may be used", func(v Inventory) string { return fmt.Sprint(v.Cores) }, ""},
	}
	for _, name := range libraries {
		p := property{"versions", Warning, "the versions of " + name, func(v Inventory) string { return v.Libraries[name] }, "install the same " + name + " on every host"}
		if name == "libnccl" {
			p.severity = Error
			p.fix += ": ranks with different ones do not understand each other"
		}
		out = append(out, p)
	}
	return out
}

// compare reports what differs between hosts, once for all of them.
func compare(list []Inventory) (out []Finding) {
	for _, p := range properties() {
		hosts := map[string][]string{} // by value
		var values []string
		for _, v := range list {
			s := p.of(v)
			if hosts[s] == nil {
				values = append(values, s)
			}
			hosts[s] = append(hosts[s], v.Host)
		}
		if len(values) < 2 {
			continue
		}
		// The value of most hosts is taken to be the right one.
		slices.SortStableFunc(values, func(a, b string) int { return len(hosts[b]) - len(hosts[a]) })
		var seen []string
		for _, s := range values {
			value := s
			if value == "" {
				value = "none"
			}
			seen = append(seen, fmt.Sprintf("%s: %s", hostList(hosts[s]), value))
		}
		odd := hosts[values[1]]
		out = append(out, Finding{
			Check: p.check, Severity: p.severity, Where: Where{Host: hostList(odd)},
			What: p.what + " differ between hosts", Evidence: strings.Join(seen, "; "), Fix: p.fix,
		})
	}
	return out
}

// mtuSet lists the MTUs of the cards in use.
func mtuSet(v Inventory) string {
	var out []string
	for _, c := range v.Cards {
		out = append(out, fmt.Sprint(c.MTU))
	}
	slices.Sort(out)
	return orNone(slices.Compact(out))
}
