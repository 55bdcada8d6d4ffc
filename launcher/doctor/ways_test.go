package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// A peer's addresses are tried in the order in which a job would, and those that mean
// somebody else are left out.
func TestWays(t *testing.T) {
	ip := netip.MustParseAddr
	own := []address{{IP: ip("10.0.0.1"), Bits: 24, Name: "eth0", MTU: 9000}, {IP: ip("172.17.0.1"), Bits: 16, Name: "docker0"}, {IP: ip("10.1.0.1"), Bits: 24, Name: "eth1", MTU: 1500}}
	peer := []address{
		{IP: ip("172.17.0.1"), Bits: 16, Name: "docker0", Carrier: true},
		{IP: ip("172.19.0.2"), Bits: 16, Name: "br-x", Carrier: true, MTU: 1500},
		{IP: ip("192.168.9.2"), Bits: 24, Name: "nowhere", Carrier: true},
		{IP: ip("10.2.0.2"), Bits: 24, Name: "routed", Carrier: true, Hardware: true, Speed: 100000, MTU: 1500},
		{IP: ip("10.1.0.2"), Bits: 24, Name: "slow", Carrier: true, Hardware: true, Speed: 1000, MTU: 1500},
		{IP: ip("10.0.0.2"), Bits: 24, Name: "fast", Carrier: true, Hardware: true, Speed: 25000, MTU: 1500},
		{IP: ip("10.0.0.3"), Bits: 24, Name: "unplugged", Hardware: true, Speed: 400000, MTU: 9000},
	}
	route := func(a netip.Addr) (netip.Addr, bool) {
		switch {
		case a == ip("192.168.9.2"):
			return netip.Addr{}, false
		case netip.MustParsePrefix("10.1.0.0/24").Contains(a):
			return ip("10.1.0.1"), true
		case a == ip("172.17.0.1"):
			return a, true
		}
		return ip("10.0.0.1"), true
	}
	got := func(list []way) string {
		var out []string
		for _, w := range list {
			out = append(out, fmt.Sprintf("%s from %s mtu %d", w.Name, w.local, w.mtu))
		}
		return strings.Join(out, "\n")
	}
	const want = `fast from 10.0.0.1 mtu 1500
slow from 10.1.0.1 mtu 1500
routed from 10.0.0.1 mtu 1500
br-x from 10.0.0.1 mtu 1500
unplugged from 10.0.0.1 mtu 9000`
	if g := got(ways(own, peer, route)); g != want {
		t.Errorf("got:\n%s\nwant:\n%s", g, want)
	}
	if list := ways(own, slices.Clone(own), route); len(list) != 1 || !list[0].IP.IsLoopback() {
		t.Errorf("on the same host:\n%s", got(list))
	}
}

func TestJudge(t *testing.T) {
	at := func(from, to, iface, addr string, o Outcome) Dial {
		return Dial{From: from, To: to, Interface: iface, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddrPort(addr), Outcome: o, Millis: 1}
	}
	for name, c := range map[string]struct {
		dials    []Dial
		severity Severity
		want     string // of the only finding; "" for none
	}{
		"well":      {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Connected), at("a", "b", "eth1", "10.1.0.2:1", Filtered)}, 0, ""},
		"in vain":   {[]Dial{at("a", "b", "br-x", "172.19.0.2:1", Unreachable), at("a", "b", "eth0", "10.0.0.2:1", Connected)}, Warning, `a tries br-x of b before eth0, in vain`},
		"one port":  {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Filtered), at("a", "b", "eth0", "10.0.0.2:2", Connected)}, 0, ""},
		"filtered":  {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Filtered)}, Error, `a cannot reach b: filtered: no answer at all`},
		"refused":   {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Refused)}, Error, `a cannot reach b: refused: an RST`},
		"one way":   {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Filtered), at("b", "a", "eth0", "10.0.0.1:1", Connected)}, Error, `no answer at all.*; the other way it works`},
		"stranger":  {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Stranger)}, Error, `a cannot reach b: another host or program answers`},
		"unreached": {[]Dial{at("a", "b", "eth0", "10.0.0.2:1", Unreachable)}, Error, `a cannot reach b: unreachable`},
	} {
		list := judge(c.dials)
		switch {
		case c.want == "" && len(list) > 0:
			t.Errorf("%s:\n%s", name, dump(list))
		case c.want != "" && (len(list) != 1 || len(matching(list, c.want)) != 1 || list[0].Severity != c.severity || list[0].Where.Peer != "b"):
			t.Errorf("%s: want one %s like %q:\n%s", name, c.severity, c.want, dump(list))
		}
	}
}

// Blocked ports are told by how they are blocked.
func TestBlocked(t *testing.T) {
	var dials []Dial
	for port, o := range []Outcome{Connected, Filtered, Filtered, Connected, Filtered, Refused} {
		dials = append(dials, Dial{Interface: "eth0", Remote: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(40000+port)), Outcome: o})
	}
	list := blocked(dials, "b")
	if len(list) != 2 ||
		!strings.HasPrefix(list[0].What, "3 of the 6 ports of comm.ports cannot be reached on b: 40001-40002, 40004 (filtered") ||
		!strings.HasPrefix(list[1].What, "1 of the 6 ports of comm.ports cannot be reached on b: 40005 (refused") {
		t.Errorf("%s", dump(list))
	}
	if list := blocked(dials[:1], "b"); list != nil {
		t.Errorf("an open one:\n%s", dump(list))
	}
}
