package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// interfaces looks for network interfaces that a job would take and should not, or
// should take and cannot.
type interfaces struct{}

func (interfaces) name() string { return "interfaces" }

func (c interfaces) look(_ context.Context, m *Machine) ([]Finding, error) {
	list, err := m.interfaces()
	if err != nil {
		return nil, err
	}
	out := c.itself(list)
	for _, i := range list {
		out = append(out, c.state(m, i)...)
	}
	out = append(out, c.crowded(m, list)...)
	out = append(out, c.firstForNCCL(m, list)...)
	return append(out, c.chosen(m, list)), nil
}

// itself reports a host that does not reach itself, as in a network namespace whose
// loopback nobody has brought up.
func (interfaces) itself(list []Interface) []Finding {
	for _, i := range list {
		has := slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr().Is4() && p.Addr().IsLoopback() })
		if i.Kind != loopback || i.Up && has {
			continue
		}
		return []Finding{{
			Severity: Error, Where: Where{Interface: i.Name},
			What:     "127.0.0.1 leads nowhere: the workers of this host meet there, and no job starts",
			Evidence: i.describe(),
			Fix:      fmt.Sprintf("ip link set %s up", i.Name),
		}}
	}
	return nil
}

// state reports an interface that has been given addresses that cannot be used.
func (interfaces) state(m *Machine, i Interface) []Finding {
	f := Finding{Severity: Note, Where: Where{Interface: i.Name}, Evidence: i.describe()}
	if i.real() {
		f.Severity = m.sterner()
	}
	switch {
	case i.Kind == loopback || len(i.Addrs) == 0:
		return nil
	case !i.Up:
		f.What = "the interface has an address, and is down"
		f.Fix = fmt.Sprintf("ip link set %s up, or take the address away", i.Name)
	case len(i.reachable()) == 0:
		if !i.real() {
			return nil // every veth and bridge has a link-local address
		}
		f.What = "the interface has link-local addresses alone: no other host is told of it"
		f.Fix = "give it an address (DHCP may have failed), if it is to carry a job's traffic"
	case !i.Carrier:
		if !i.real() {
			return nil // a bridge without members has none
		}
		f.What = "the interface has an address, and no carrier: packets that are routed to it vanish"
		f.Fix = "check the cable, the switch's port and the other end; or take the address away"
	default:
		return nil
	}
	return []Finding{f}
}

// crowded reports cards whose addresses are in one network: the kernel sends by one of
// them and answers for both.
func (interfaces) crowded(m *Machine, list []Interface) []Finding {
	in := map[netip.Prefix][]Interface{}
	var order []netip.Prefix
	for _, i := range list {
		if !i.usable() || !i.real() {
			continue
		}
		for _, a := range i.reachable() {
			n := a.Masked()
			if others := in[n]; len(others) > 0 && others[len(others)-1].Name == i.Name {
				continue
			}
			if len(in[n]) == 0 {
				order = append(order, n)
			}
			in[n] = append(in[n], i)
		}
	}
	var out []Finding
	for _, n := range order {
		if len(in[n]) < 2 {
			continue
		}
		var seen []string
		for _, i := range in[n] {
			seen = append(seen, i.describe())
		}
		out = append(out, Finding{
			Severity: m.sterner(), Where: Where{Interface: names(in[n])},
			What:     fmt.Sprintf("%d interfaces are in the network %s: the kernel sends by one of them, whichever address a peer was told, and answers ARP for both", len(in[n]), n),
			Evidence: strings.Join(seen, "; "),
			Fix:      "put each card into a network of its own, or set net.ipv4.conf.all.arp_ignore=1, arp_announce=2 and a routing rule for each source address (ip rule add from ADDRESS table N)",
		})
	}
	return out
}

// skippedByNCCL are the beginnings of names that NCCL leaves out by itself.
var skippedByNCCL = []string{"lo", "docker", "virbr"}

// firstForNCCL reports a virtual interface that NCCL, and others who take the first
// one, would use though there is a card.
func (interfaces) firstForNCCL(m *Machine, list []Interface) []Finding {
	if m.env("NCCL_SOCKET_IFNAME") != "" {
		return nil // variables looks at it
	}
	var first *Interface
	var cards []Interface
	for n, i := range list {
		if !i.usable() {
			continue
		}
		if strings.HasPrefix(i.Name, "ib") {
			return nil // NCCL takes those before all others
		}
		if first == nil && !hasAnyPrefix(i.Name, skippedByNCCL) {
			first = &list[n]
		}
		if i.Kind == hardware && i.Carrier {
			cards = append(cards, i)
		}
	}
	if first == nil || first.real() || len(cards) == 0 {
		return nil
	}
	return []Finding{{
		Severity: m.sterner(), Where: Where{Interface: first.Name},
		What:     fmt.Sprintf("%s leads to containers of this host, and yet is the first that NCCL takes: it skips %s alone", first.Name, strings.Join(skippedByNCCL, "*, ")+"*"),
		Evidence: fmt.Sprintf("%s; cards: %s", first.describe(), names(cards)),
		Fix:      fmt.Sprintf("NCCL_SOCKET_IFNAME==%[1]s, for programs on gloo GLOO_SOCKET_IFNAME=%[1]s; gorun's own transport asks for the route to each peer", cards[0].Name),
	}}
}

// chosen says which interface peers try first, and why.
func (interfaces) chosen(m *Machine, list []Interface) Finding {
	best := ranked(list)
	if len(best) == 0 {
		f := Finding{
			Severity: Note, What: "no interface has an address that another host could reach",
			Evidence: describeAll(list),
			Fix:      "bring an interface up and give it an address; a job on this host alone needs none",
		}
		if m.several() {
			f.Severity = Error
		}
		return f
	}
	why := []string{"it is up"}
	b := best[0]
	if b.Carrier {
		why = append(why, "has a carrier")
	}
	if b.Kind == hardware {
		why = append(why, "has hardware behind it")
	}
	if b.Speed > 0 {
		why = append(why, "runs at "+speedText(b.Speed))
	}
	what := fmt.Sprintf("other hosts try %s (%s) first: %s", b.Name, b.reachable()[0].Addr(), strings.Join(why, ", "))
	if len(best) > 1 {
		what += fmt.Sprintf("; then %s. An address in a network that both hosts are on goes before one that is not", names(best[1:]))
	}
	return Finding{Severity: Note, Where: Where{Interface: b.Name}, What: what, Evidence: describeAll(list)}
}

func describeAll(list []Interface) string {
	var out []string
	for _, i := range list {
		if i.Kind != loopback {
			out = append(out, i.describe())
		}
	}
	if len(out) == 0 {
		return "loopback alone"
	}
	return strings.Join(out, "; ")
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
