package topology

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A net is an RDMA device's port, which has a number from 1 on, or an interface that
// NCCL uses by sockets, whose port is 0. NCCL uses those that have a dev.

// net reads one into its card.
func (d *decoder) net(e *element, n *NIC) {
	u := d.using(e)
	name, mbps, port := u.must("name"), max(0, u.number("speed", 0)), u.number("port", 0)
	u.number("dev", 0) // checked, for NCCL numbers them anew
	_, used := e.value("dev")
	interfaces := strings.FieldsFunc(u.text("ifname"), func(r rune) bool { return r == ',' })
	mtu := u.number("mtu", 0)
	n.nets = append(n.nets, e)
	if port < 1 {
		state := cmp.Or(u.text("state"), map[bool]string{true: "up", false: "down"}[used])
		n.Netdevs = append(n.Netdevs, Netdev{Name: name, Kind: "device", Mbps: mbps, MTU: mtu, State: state})
		return
	}
	p := Port{
		Number: port, Mbps: mbps, LinkLayer: u.text("link_layer"), Netdevs: interfaces,
		State: cmp.Or(u.text("state"), map[bool]string{true: "ACTIVE", false: "DOWN"}[used]),
	}
	for _, name := range interfaces {
		state := map[bool]string{true: "up", false: "down"}[p.Active()]
		n.Netdevs = append(n.Netdevs, Netdev{Name: name, Kind: "device", Mbps: mbps, MTU: mtu, State: state})
	}
	for i := range n.RDMA {
		if n.RDMA[i].Name == name {
			n.RDMA[i].Ports = append(n.RDMA[i].Ports, p)
			return
		}
	}
	n.RDMA = append(n.RDMA, RDMA{Name: name, GUID: guidText(u.text("guid")), Ports: []Port{p}})
}

// nets writes those of a card. NCCL takes the first of a name, so active ports come
// first.
func (w *writer) nets(n *NIC) []*element {
	if len(n.nets) > 0 {
		return n.nets
	}
	var list []*element
	for _, r := range n.RDMA {
		ports := slices.Clone(r.Ports)
		slices.SortStableFunc(ports, func(a, b Port) int {
			return cmp.Compare(map[bool]int{true: 0, false: 1}[a.Active()], map[bool]int{true: 0, false: 1}[b.Active()])
		})
		for _, p := range ports {
			e := w.net(n, r.Name, p.Mbps, p.Number, p.Active())
			if guid := guidNumber(r.GUID); guid != "" {
				e.set("guid", guid)
			}
			e.set("state", p.State)
			e.set("link_layer", p.LinkLayer)
			if len(p.Netdevs) > 0 {
				e.set("ifname", strings.Join(p.Netdevs, ","))
				w.mtu(e, n, p.Netdevs[0])
			}
			list = append(list, e)
		}
	}
	if len(n.RDMA) > 0 {
		return list
	}
	for _, d := range n.Netdevs {
		e := w.net(n, d.Name, d.Mbps, 0, d.Up() && slices.Contains(w.sys.usable(), n))
		e.set("state", d.State)
		w.mtu(e, n, d.Name)
		list = append(list, e)
	}
	return list
}

func (w *writer) net(n *NIC, name string, mbps, port int, used bool) *element {
	e := &element{name: "net"}
	e.set("name", name)
	if used {
		e.set("dev", strconv.Itoa(w.devs))
		w.devs++
	}
	if mbps > 0 {
		e.set("speed", strconv.Itoa(mbps))
	}
	e.set("port", strconv.Itoa(port))
	return e
}

func (w *writer) mtu(e *element, n *NIC, netdev string) {
	for _, d := range n.Netdevs {
		if d.Name == netdev && d.MTU > 0 {
			e.set("mtu", strconv.Itoa(d.MTU))
		}
	}
}

// guidNumber is NCCL's spelling of a GUID: its eight bytes as a number, the first one
// the lowest. "" if it is none.
func guidNumber(text string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(b) != 8 {
		return ""
	}
	return fmt.Sprintf("%#x", binary.LittleEndian.Uint64(b))
}

// guidText is the kernel's spelling of NCCL's; "" if it is none.
func guidText(number string) string {
	v, err := strconv.ParseUint(strings.TrimPrefix(number, "0x"), 16, 64)
	if err != nil {
		return ""
	}
	b := binary.LittleEndian.AppendUint64(nil, v)
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
}

// coresOf is the list of cores in a mask of hexadecimal words, the last word the
// lowest. "" if it is none.
func coresOf(mask string) string {
	words := strings.Split(mask, ",")
	slices.Reverse(words)
	var on []int
	for i, word := range words {
		bits, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return ""
		}
		for b := range 32 {
			if bits&(1<<b) != 0 {
				on = append(on, 32*i+b)
			}
		}
	}
	var ranges []string
	for i := 0; i < len(on); {
		j := i
		for j+1 < len(on) && on[j+1] == on[j]+1 {
			j++
		}
		if i == j {
			ranges = append(ranges, strconv.Itoa(on[i]))
		} else {
			ranges = append(ranges, fmt.Sprintf("%d-%d", on[i], on[j]))
		}
		i = j + 1
	}
	return strings.Join(ranges, ",")
}
