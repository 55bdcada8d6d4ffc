package doctor

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
)

// call is what a host tells the others before they probe it.
type call struct {
	Name  string    `json:"name"`
	ID    string    `json:"id"` // of its answerer
	Addrs []address `json:"addrs"`
	Ports []uint16  `json:"ports"` // on which its answerer listens, at every address
	RDMA  []string  `json:"rdma"`  // active ports, by position those that are tried together
}

// address is one of a host's, of those that others may reach.
type address struct {
	IP       netip.Addr `json:"ip"`
	Bits     int        `json:"bits"` // of its network
	Name     string     `json:"name"` // of the interface
	MTU      int        `json:"mtu"`
	Speed    int        `json:"speed"`
	Hardware bool       `json:"hardware"`
	Carrier  bool       `json:"carrier"`
	Real     bool       `json:"real"` // hardware, or a bond or VLAN on it
}

// offered are the addresses that others are told of: all that are usable, or the one
// that comm.interface names.
func offered(list []Interface, want string) (out []address) {
	for _, i := range list {
		if !i.usable() {
			continue
		}
		for _, p := range i.reachable() {
			a := address{p.Addr(), p.Bits(), i.Name, i.MTU, i.Speed, i.Kind == hardware, i.Carrier, i.real()}
			if want == "" {
				out = append(out, a)
			} else if want == i.Name || want == p.Addr().String() {
				return []address{a}
			}
		}
	}
	return out
}

// way is how a host would go to an address of a peer.
type way struct {
	address            // the peer's
	local   netip.Addr // by which the kernel sends there
	mtu     int        // the smaller one of the interfaces' at both ends
}

// ways lists a peer's addresses in the order in which gorun's tcp transport tries
// them: those with a carrier first, then those in a network that both hosts are on,
// hardware, and fast ones. An address to which no route leads, or that this host has
// too (containers' bridges have the same ones everywhere), is left out. A peer that has
// this host's very addresses runs on it, and is reached by loopback.
func ways(own, peer []address, route func(netip.Addr) (netip.Addr, bool)) (out []way) {
	same := func(a, b address) bool { return a.IP == b.IP }
	if slices.EqualFunc(own, peer, same) {
		lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		return []way{{address{IP: lo, Bits: 8, Name: "lo", Carrier: true}, lo, loopbackMTU()}}
	}
	for _, a := range peer {
		local, ok := route(a.IP)
		if !ok || local.IsLoopback() || local == a.IP {
			continue
		}
		w := way{a, local, a.MTU}
		if i := slices.IndexFunc(own, func(o address) bool { return o.IP == local }); i >= 0 {
			w.mtu = min(w.mtu, own[i].MTU)
		}
		out = append(out, w)
	}
	rank := func(w way) int { // lower is tried first
		n := 0
		for _, good := range []bool{w.Carrier, w.onLink(own), w.Hardware} {
			n *= 2
			if !good {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(out, func(a, b way) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Speed, a.Speed))
	})
	return out
}

// onLink says whether no router is between: the network of the local address holds the
// remote one.
func (w way) onLink(own []address) bool {
	for _, o := range own {
		if o.IP == w.local {
			return netip.PrefixFrom(o.IP, o.Bits).Contains(w.IP)
		}
	}
	return false
}

func loopbackMTU() int {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return smallestMTU
	}
	return lo.MTU
}
