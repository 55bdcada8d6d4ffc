package rdma

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// port is a port of a device that is fit for use, and the address that it has there.
type port struct {
	Device string
	Number uint8
	verbs.Port
	GID verbs.GID
}

func (p port) String() string {
	return fmt.Sprintf("%s port %d, GID %s (%s, index %d), MTU %d", p.Device, p.Number, p.GID.Addr, p.GID.Type, p.GID.Index, p.MTU.Bytes())
}

// ErrNone is inside the error for a host that has nothing fit for RDMA.
var ErrNone = errors.New("no usable RDMA device")

// Usable names the ports that this process could use, in the host's order. No port at
// all is an error that wraps ErrNone, or the reason why libibverbs cannot be asked.
func Usable(api *verbs.API, s Settings) ([]string, error) {
	api, err := loaded(api)
	if err != nil {
		return nil, err
	}
	ports, err := usable(api, s)
	var names []string
	for _, p := range ports {
		names = append(names, p.String())
	}
	return names, err
}

// usable looks at every port that s does not exclude.
func usable(api *verbs.API, s Settings) ([]port, error) {
	want, err := parseHCA(s.HCA)
	if err != nil {
		return nil, err
	}
	names, err := api.Devices()
	if err != nil {
		return nil, err
	}
	var out []port
	var not []string // why
	for _, name := range names {
		found, reasons, err := portsOf(api, name, want, s)
		if err != nil {
			return nil, fmt.Errorf("RDMA device %s: %w", name, err)
		}
		out, not = append(out, found...), append(not, reasons...)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case len(names) == 0:
		return nil, fmt.Errorf("%w: this host has none (`ibv_devices` lists them; their driver may be missing)", ErrNone)
	}
	return nil, fmt.Errorf("%w: %s", ErrNone, strings.Join(not, "; "))
}

func portsOf(api *verbs.API, name string, want hcaList, s Settings) (out []port, not []string, err error) {
	if !want.device(name) {
		return nil, []string{fmt.Sprintf("%s is not among %q (comm.ib_hca or NCCL_IB_HCA)", name, s.HCA)}, nil
	}
	c, err := api.Open(name)
	if err != nil {
		return nil, []string{fmt.Sprintf("%s does not open: %v", name, err)}, nil
	}
	defer func() { err = errors.Join(err, api.Close(c)) }()
	gids, err := api.GIDs(c)
	if err != nil {
		return nil, nil, err
	}
	const mostPorts = 8
	for n := uint8(1); n <= mostPorts; n++ {
		p, err := api.Port(c, n)
		if err != nil {
			break // the device has no such port
		}
		where := fmt.Sprintf("%s port %d", name, n)
		if !want.allows(name, n) {
			not = append(not, fmt.Sprintf("%s is not among %q", where, s.HCA))
			continue
		}
		if p.State != verbs.PortActive {
			not = append(not, fmt.Sprintf("%s is %s", where, p.StateString()))
			continue
		}
		gid, err := chooseGID(gids, n, p.Link, s.GID-1)
		if err != nil {
			not = append(not, fmt.Sprintf("%s: %v", where, err))
			continue
		}
		out = append(out, port{name, n, p, gid})
	}
	return out, not, nil
}

// chooseGID picks a port's address. InfiniBand has one, the first. On Ethernet it is
// one of RoCE v2, which alone is routed: with an IPv4 address, else with a global IPv6
// address, else, within one network segment, a link-local one. want is the index that
// the user asks for, or -1.
func chooseGID(gids []verbs.GID, port uint8, link verbs.LinkLayer, want int) (verbs.GID, error) {
	best, rank := verbs.GID{}, 0
	var there []string
	for _, g := range gids {
		if g.Port != port {
			continue
		}
		there = append(there, fmt.Sprintf("%d: %s (%s)", g.Index, g.Addr, g.Type))
		if want >= 0 {
			if g.Index == want {
				return g, nil
			}
			continue
		}
		r := 0
		switch {
		case link != verbs.Ethernet:
			r = 1
		case g.Type != verbs.TypeRoCEv2:
		case g.Addr.Is4In6():
			r = 3
			if g.Addr.Unmap().IsLinkLocalUnicast() {
				r = 1
			}
		case g.Addr.IsLinkLocalUnicast():
			r = 1
		default:
			r = 2
		}
		if r > rank {
			best, rank = g, r
		}
	}
	switch {
	case rank > 0:
		return best, nil
	case want >= 0:
		return best, fmt.Errorf("its table of addresses has no index %d (comm.gid_index or NCCL_IB_GID_INDEX), but %s", want, strings.Join(there, ", "))
	case len(there) == 0:
		return best, errors.New("it has no address: give its network interface one")
	}
	return best, fmt.Errorf("it has no address of RoCE v2, but %s", strings.Join(there, ", "))
}

// netdev is the network interface of an address, for advice. Empty: unknown.
func netdev(g verbs.GID) string {
	if i, err := net.InterfaceByIndex(g.Iface); err == nil {
		return i.Name
	}
	return ""
}

// hcaList is NCCL's way of naming devices.
type hcaList struct {
	entries        []hcaEntry
	exclude, exact bool
}

type hcaEntry struct {
	name string
	port uint8 // 0: all
}

// CheckHCA refuses what is no Settings.HCA, and what is given and names no device, such
// as ^.
func CheckHCA(s string) error {
	_, err := parseHCA(s)
	return err
}

func parseHCA(s string) (hcaList, error) {
	var l hcaList
	rest, exclude := strings.CutPrefix(s, "^")
	rest, exact := strings.CutPrefix(rest, "=")
	l.exclude, l.exact = exclude, exact
	for e := range strings.SplitSeq(rest, ",") {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		name, number, has := strings.Cut(e, ":")
		entry := hcaEntry{name: name}
		if has {
			n, err := strconv.ParseUint(number, 10, 8)
			if err != nil || n == 0 || name == "" {
				return l, fmt.Errorf("%q names no devices: %q is none, nor one and its port, such as mlx5_0:1", s, e)
			}
			entry.port = uint8(n)
		}
		l.entries = append(l.entries, entry)
	}
	if s != "" && l.entries == nil {
		return l, fmt.Errorf("%q names no device: want such as mlx5_0, =mlx5_0:1 or ^mlx5_1", s)
	}
	return l, nil
}

func (l hcaList) names(e hcaEntry, device string) bool {
	return e.name == device || !l.exact && strings.HasPrefix(device, e.name)
}

// device reports whether any port of a device may be allowed.
func (l hcaList) device(name string) bool {
	for _, e := range l.entries {
		if l.names(e, name) && (!l.exclude || e.port == 0) {
			return !l.exclude
		}
	}
	return l.exclude || len(l.entries) == 0
}

// allows reports whether a port may be used.
func (l hcaList) allows(name string, port uint8) bool {
	for _, e := range l.entries {
		if l.names(e, name) && (e.port == 0 || e.port == port) {
			return !l.exclude
		}
	}
	return l.exclude || len(l.entries) == 0
}
