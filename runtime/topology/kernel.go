package topology

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/Mellanox/rdmamap"
	"github.com/vishvananda/netlink"
)

// kernel is the inventory of this machine: interfaces by netlink, RDMA devices by
// rdmamap, whose paths are fixed to this machine's /sys and /dev.
type kernel struct{ tree }

// netdevs lists the interfaces of this process's network namespace, which need not
// be the one that /sys was mounted in.
func (k kernel) netdevs() ([]Netdev, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	var list []Netdev
	for _, l := range links {
		a := l.Attrs()
		d := Netdev{Name: a.Name, Kind: l.Type(), MTU: a.MTU, State: a.OperState.String()}
		if a.Flags&net.FlagLoopback != 0 {
			d.Kind = "loopback"
		}
		// Another namespace may have one of the same name.
		d.unseen = k.number(0, netClass, a.Name, "ifindex") != a.Index || !sameAddress(k.text(netClass, a.Name, "address"), a.HardwareAddr)
		list = append(list, d)
	}
	return list, nil
}

// sameAddress compares a hardware address of /sys with one of netlink, which leaves out
// those of zeros.
func sameAddress(text string, a net.HardwareAddr) bool {
	return text == a.String() || len(a) == 0 && strings.Trim(text, "0:") == ""
}

func (kernel) rdmaDevices() []string { return rdmamap.GetRdmaDeviceList() }

// verbs picks the one device of rdmamap's list that belongs to rdma alone: rdma_cm is
// in the list of every name, also of one that does not exist.
func (kernel) verbs(rdma string) string {
	for _, path := range rdmamap.GetRdmaCharDevices(rdma) {
		if strings.HasPrefix(filepath.Base(path), rdmamap.RdmaUverbsFilxPrefix) {
			return path
		}
	}
	return ""
}

// rdmaOf is asked for IPoIB interfaces only, which rdmamap knows by their address. Of
// Ethernet it knows the device and not the port, by reading every port's address
// table for each interface; readRDMA reads each table once, and keeps the port.
func (kernel) rdmaOf(netdev string) string {
	name, err := rdmamap.GetRdmaDeviceForNetdevice(netdev)
	if err != nil {
		return "" // it says so of interfaces without RDMA
	}
	return name
}
