package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// variables looks for settings that name an interface, an RDMA device or a file which is
// not there, gorun's own and the environment's, and for values that no job takes.
type variables struct{}

func (variables) name() string { return "variables" }

func (c variables) look(_ context.Context, m *Machine) ([]Finding, error) {
	list, err := m.interfaces()
	if err != nil {
		return nil, err
	}
	devices, err := m.list("sys/class/infiniband")
	if err != nil {
		return nil, err
	}
	var nets []string
	for _, i := range list {
		nets = append(nets, i.Name)
	}
	var out []Finding
	for _, v := range []struct {
		name   string
		prefix bool // a name stands for all that begin so
		what   string
		have   []string
	}{
		{"NCCL_SOCKET_IFNAME", true, "network interface", nets},
		{"GLOO_SOCKET_IFNAME", false, "network interface", nets},
		{"TP_SOCKET_IFNAME", false, "network interface", nets},
		{"NCCL_IB_HCA", true, "RDMA device", devices},
	} {
		value := m.env(v.name)
		if value == "" {
			continue
		}
		if missing := unknown(value, v.prefix, v.have); len(missing) > 0 {
			out = append(out, Finding{
				Severity: Error,
				What:     fmt.Sprintf("%s=%s names %s, and no %s here is called so", v.name, value, strings.Join(missing, ", "), v.what),
				Evidence: fmt.Sprintf("%ss: %s", v.what, orNone(v.have)),
				Fix:      fmt.Sprintf("unset %s, or name one that is there on every host", v.name),
			})
		}
	}
	out = append(out, c.meaningless(m)...)
	out = append(out, c.topology(m)...)
	return append(out, c.own(m, list)...), nil
}

// meaningless reports values that end a job before its ranks meet.
func (variables) meaningless(m *Machine) (out []Finding) {
	err := comm.CheckVariables(func(name string) (string, bool) {
		value := m.env(name)
		return value, value != ""
	})
	if err == nil {
		return nil
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, "=")
		out = append(out, Finding{
			Severity: Error,
			What:     name + " has a value that no job of gorun takes",
			Evidence: line,
			Fix:      "unset " + name + ", or give it a value that means something",
		})
	}
	return out
}

// topology looks at the file that NCCL is to go by.
func (variables) topology(m *Machine) []Finding {
	const variable = "NCCL_TOPO_FILE"
	name := m.env(variable)
	if name == "" {
		return nil
	}
	file := name // below the folder in which gorun was started
	if filepath.IsAbs(name) {
		file = m.path(name)
	}
	if _, err := topology.ReadFile(file); err != nil {
		return []Finding{{
			Severity: Error,
			What:     fmt.Sprintf("%s=%s is no topology that NCCL takes", variable, name),
			Evidence: err.Error(),
			Fix:      fmt.Sprintf("unset %s, or write the file by gorun topo --xml", variable),
		}}
	}
	return nil
}

// own looks at comm.interface, which takes a name or an address.
func (variables) own(m *Machine, list []Interface) []Finding {
	if m.Interface == "" {
		return nil
	}
	n := slices.IndexFunc(list, func(i Interface) bool {
		return i.Name == m.Interface || slices.ContainsFunc(i.reachable(), func(p netip.Prefix) bool { return p.Addr().String() == m.Interface })
	})
	f := Finding{
		Severity: Error, Where: Where{Interface: m.Interface}, Evidence: describeAll(list),
		Fix: "leave comm.interface (--interface) empty, or give one that is up and has an address on every host",
	}
	switch {
	case n < 0:
		f.What = "comm.interface names an interface that is not there"
	case !list[n].usable():
		f.What = "comm.interface names an interface that is down, or has no address that other hosts can reach"
	default:
		return nil
	}
	return []Finding{f}
}

// unknown are the names of a list in NCCL's grammar that fit nothing: a leading ^
// leaves names out, where = asks for the whole name, :N is a port, and without = a
// name may be a prefix.
func unknown(value string, prefix bool, have []string) (missing []string) {
	if strings.HasPrefix(value, "^") {
		return nil // to leave out what is not there does no harm
	}
	exact := strings.HasPrefix(value, "=") || !prefix
	for name := range strings.SplitSeq(strings.TrimPrefix(value, "="), ",") {
		name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
		if name == "" {
			continue
		}
		if !slices.ContainsFunc(have, func(h string) bool { return h == name || !exact && strings.HasPrefix(h, name) }) {
			missing = append(missing, name)
		}
	}
	return missing
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
