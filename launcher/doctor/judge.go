package doctor

import (
	"fmt"
	"strings"
)

// pair is a host and one that it goes to.
type pair struct{ from, to string }

// judge says which hosts cannot reach each other, and which addresses are tried in
// vain before one that answers. The dials of a pair stand in the order in which they
// are tried.
func judge(dials []Dial) (out []Finding) {
	by := map[pair][]Dial{}
	var order []pair
	for _, d := range dials {
		p := pair{d.From, d.To}
		if by[p] == nil {
			order = append(order, p)
		}
		by[p] = append(by[p], d)
	}
	for _, p := range order {
		list, back := by[p], by[pair{p.to, p.from}]
		switch i := firstOpen(list); {
		case i < 0:
			out = append(out, unreachable(p, list, back))
		case i > 0 && !onePortOnly(list):
			out = append(out, inVain(p, list[:i], list[i]))
		}
	}
	return out
}

func firstOpen(list []Dial) int {
	for i, d := range list {
		if d.Outcome == Connected {
			return i
		}
	}
	return -1
}

// onePortOnly says whether the dial that was answered differs from one that was not
// by its port alone: what is blocked is said of the ports then.
func onePortOnly(list []Dial) bool {
	open := list[firstOpen(list)]
	return list[0].Remote.Addr() == open.Remote.Addr()
}

func unreachable(p pair, list, back []Dial) Finding {
	f := Finding{
		Check: "dials", Severity: Error, Where: Where{Host: p.from, Peer: p.to},
		What:     fmt.Sprintf("%s cannot reach %s: %s", p.from, p.to, meaning[list[0].Outcome]),
		Evidence: dialTexts(list),
		Fix:      "open TCP between the hosts (iptables -L, nft list ruleset, the cloud's security group): all ports, or those of comm.ports; where an interface leads elsewhere, name the right one (comm.interface)",
	}
	if i := firstOpen(back); i >= 0 {
		f.What += "; the other way it works"
		f.Evidence += "; the other way: " + back[i].String()
	}
	return f
}

func inVain(p pair, failed []Dial, open Dial) Finding {
	var bad []string
	for _, d := range failed {
		bad = append(bad, d.Interface)
	}
	return Finding{
		Check: "dials", Severity: Warning, Where: Where{Host: p.from, Interface: bad[0], Peer: p.to},
		What:     fmt.Sprintf("%s tries %s of %s before %s, in vain: connections take longer, and programs that take the first interface fail", p.from, strings.Join(bad, ", "), p.to, open.Interface),
		Evidence: dialTexts(append(failed[:len(failed):len(failed)], open)),
		Fix:      fmt.Sprintf("comm.interface=%[1]s (for NCCL NCCL_SOCKET_IFNAME==%[1]s, for gloo GLOO_SOCKET_IFNAME=%[1]s), or give networks that are not joined different addresses", open.Interface),
	}
}

func dialTexts(list []Dial) string {
	var out []string
	for _, d := range list {
		out = append(out, d.String())
	}
	return strings.Join(out, "; ")
}
