package tcp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// endpoint is where a rank listens, as the others read it.
type endpoint struct {
	Addrs []address
	Port  uint16

	bound netip.Addr // where Options.Interface asks for one address
}

// address is one of a host's addresses.
type address struct {
	IP      netip.Addr
	Name    string // of the interface
	Speed   int    // Mbit/s, 0 where unknown
	Virtual bool   // no hardware behind it: a bridge, a tunnel, a pair of veths
	Idle    bool   // no carrier, at least not yet
}

func (a address) String() string { return fmt.Sprintf("%s (%s)", a.IP, a.Name) }

func endpointKey(rank int) string { return fmt.Sprintf("tcp/%d", rank) }

func (e endpoint) encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // netip.Addr always has a text form
	}
	return b
}

func decodeEndpoint(b []byte) (endpoint, error) {
	var e endpoint
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("its endpoint %q: %w", b, err)
	}
	return e, nil
}

// listen opens a listener. want is empty (all addresses), the name of an
// interface, or an address of this host. first and last bound the port.
func listen(want string, first, last int) (*net.TCPListener, endpoint, error) {
	all, err := addresses()
	if err != nil {
		return nil, endpoint{}, err
	}
	e := endpoint{Addrs: all}
	if want != "" {
		i := slices.IndexFunc(all, func(a address) bool { return a.Name == want || a.IP.String() == want })
		if i < 0 {
			return nil, e, fmt.Errorf("interface %q is not there, is down, or has no address that others can reach; this host has %v", want, all)
		}
		e.Addrs, e.bound = all[i:i+1], all[i].IP
	}
	at := &net.TCPAddr{}
	if e.bound.IsValid() {
		at.IP = e.bound.AsSlice()
	}
	l, err := listenBetween(at, first, last)
	if err != nil {
		return nil, e, err
	}
	e.Port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	return l, e, nil
}

// listenBetween takes the first port that is free. Other ranks of this host look
// for one at the same time.
func listenBetween(at *net.TCPAddr, first, last int) (*net.TCPListener, error) {
	for at.Port = first; at.Port <= last; at.Port++ {
		l, err := net.ListenTCP("tcp", at)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("the ports %d to %d are all in use: every rank of a host needs one for each group, give more (comm.ports)", first, last)
}

// addresses lists what other hosts may reach: no loopback, no link-local.
func addresses() ([]address, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	var out []address
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface has just gone
		}
		_, err = os.Stat("/sys/class/net/" + i.Name + "/device")
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if ip = ip.Unmap(); !ok || !ip.IsGlobalUnicast() {
				continue
			}
			out = append(out, address{ip, i.Name, speed(i.Name), err != nil, i.Flags&net.FlagRunning == 0})
		}
	}
	return out, nil
}

func speed(name string) int {
	b, err := os.ReadFile("/sys/class/net/" + name + "/speed")
	if err != nil {
		return 0 // virtual interfaces have none
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// candidates lists a peer's addresses in the order in which to try them. Ranks of
// one host use loopback where the peer listens there. Between hosts, an address to
// which no route leads, or that this host has too, is left out; interfaces with a
// carrier come first, then networks that both are on, real interfaces, fast ones.
func (e endpoint) candidates(peer endpoint, near bool) []netip.AddrPort {
	var out []netip.AddrPort
	if near {
		for _, a := range [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			out = append(out, netip.AddrPortFrom(a, peer.Port))
		}
		for _, a := range peer.Addrs {
			out = append(out, netip.AddrPortFrom(a.IP, peer.Port))
		}
		if len(peer.Addrs) == 1 { // it may listen on that one alone
			out = append(out[2:], out[:2]...)
		}
		return out
	}
	type scored struct {
		address
		shared bool
	}
	var list []scored
	for _, a := range peer.Addrs {
		if e.bound.IsValid() && e.bound.Is4() != a.IP.Is4() {
			continue
		}
		local, ok := routeTo(a.IP)
		if !ok || local.IsLoopback() || local == a.IP {
			continue
		}
		list = append(list, scored{a, onLink(local, a.IP)})
	}
	first := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b scored) int {
		return cmp.Or(cmp.Compare(first(!a.Idle), first(!b.Idle)), cmp.Compare(first(a.shared), first(b.shared)),
			cmp.Compare(first(!a.Virtual), first(!b.Virtual)), cmp.Compare(b.Speed, a.Speed))
	})
	for _, a := range list {
		out = append(out, netip.AddrPortFrom(a.IP, peer.Port))
	}
	return out
}

// routeTo is the local address from which the kernel would send to addr. Nothing
// is sent.
func routeTo(addr netip.Addr) (netip.Addr, bool) {
	c, err := net.Dial("udp", netip.AddrPortFrom(addr, 9).String())
	if err != nil {
		return netip.Addr{}, false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), true
}

// onLink reports whether local's network holds addr, so that no router is between.
func onLink(local, addr netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(local.AsSlice()) {
			return n.Contains(addr.AsSlice())
		}
	}
	return false
}
