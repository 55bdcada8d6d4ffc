package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// hostname looks at what a host's own name means there. gorun never tells others an
// address that it got so; gloo and much else does.
type hostname struct{}

func (hostname) name() string { return "hostname" }

func (hostname) look(ctx context.Context, m *Machine) ([]Finding, error) {
	list, err := m.interfaces()
	if err != nil {
		return nil, err
	}
	f := Finding{Severity: m.sterner()}
	fix := "in /etc/hosts let %s mean the address of %s, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME; gorun's own transport does not care"
	card := "a card"
	if best := ranked(list); len(best) > 0 {
		card = best[0].Name
	}
	f.Fix = fmt.Sprintf(fix, m.Hostname, card)
	addrs, err := m.Lookup(ctx, m.Hostname)
	if err != nil {
		f.What = "this host does not know its own name: gloo, and programs that look themselves up, fail"
		f.Evidence = err.Error()
		return []Finding{f}, nil
	}
	if len(addrs) == 0 {
		return nil, nil
	}
	f.Evidence = fmt.Sprintf("%s is %s", m.Hostname, texts(addrs))
	addr := addrs[0]
	if addr.IsLoopback() {
		f.What = fmt.Sprintf("the host's name means %s here, which reaches no other host: gloo, and programs that tell others the address of their own name, advertise it", addr)
		return []Finding{f}, nil
	}
	i, ok := holder(list, addr)
	switch {
	case !ok:
		f.What = fmt.Sprintf("the host's name means %s, which is no address of this host", addr)
	case !i.real() && len(hardwareOf(list)) > 0:
		f.Where.Interface = i.Name
		f.What = fmt.Sprintf("the host's name means %s, the address of %s, which is virtual: programs that tell others the address of their own name advertise it", addr, i.Name)
		f.Evidence += "; " + i.describe()
	case !i.Up:
		f.Where.Interface = i.Name
		f.What = fmt.Sprintf("the host's name means %s, the address of %s, which is down", addr, i.Name)
	default:
		return nil, nil
	}
	return []Finding{f}, nil
}

// holder is the interface that has an address.
func holder(list []Interface, addr netip.Addr) (Interface, bool) {
	for _, i := range list {
		for _, p := range i.Addrs {
			if p.Addr() == addr {
				return i, true
			}
		}
	}
	return Interface{}, false
}

// hardwareOf are the cards that other hosts may be told of.
func hardwareOf(list []Interface) (out []Interface) {
	for _, i := range list {
		if i.usable() && i.real() {
			out = append(out, i)
		}
	}
	return out
}

func texts(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
