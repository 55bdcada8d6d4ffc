package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Ports looks at the ports from first to last, comm.ports, on a host that meets no other:
// whether a job may listen there.
func Ports(ctx context.Context, m *Machine, first, last int) (e Examination) {
	a, err := m.newAnswerer(ctx, netip.Addr{}, first, last, time.Now)
	if err != nil {
		e.unseen("ports", m.Name, []error{err})
		return e
	}
	defer a.close()
	e.Findings = m.ports(len(a.ports), a.busy, a.denied)
	return e
}

// ports reports those of comm.ports that another program has, beside so many free ones, those
// that this user may not have, and a range that is too small.
func (m *Machine) ports(free int, busy, denied []uint16) (out []Finding) {
	where := Where{Host: m.Name}
	if len(denied) > 0 {
		const start = "proc/sys/net/ipv4/ip_unprivileged_port_start"
		least, err := m.number(start)
		if err != nil {
			least = 1024 // the kernel's default
		}
		out = append(out, Finding{
			Check: "ports", Severity: Error, Where: where, // a worker that comes to one gives up
			What:     fmt.Sprintf("%d of the ports of comm.ports may not be listened on by this user: %s", len(denied), ranges(denied)),
			Evidence: fmt.Sprintf("listening there failed: permission denied; those below %d (/%s) are for root and CAP_NET_BIND_SERVICE", least, start),
			Fix:      fmt.Sprintf("give ports from %d on (comm.ports, --ports)", max(least, int64(slices.Max(denied))+1)),
		})
	}
	f := Finding{
		Check: "ports", Severity: Note, Where: where,
		Evidence: "listening there failed: address already in use",
		Fix:      "ss -ltnp shows who listens; every worker of a host needs a port for each group",
	}
	short := free < m.Workers
	switch {
	case len(busy) > 0:
		f.What = fmt.Sprintf("%d of the ports of comm.ports are in use: %s", len(busy), ranges(busy))
		if short {
			f.What += fmt.Sprintf("; %d are left for %s", free, plural(m.Workers, "worker"))
		}
	case short && len(denied) == 0:
		f.What = fmt.Sprintf("comm.ports has %s for %s", plural(free, "port"), plural(m.Workers, "worker"))
		f.Evidence = "none is in use by another program"
		f.Fix = "give a larger range: every worker of a host needs a port for each group"
	default:
		return out
	}
	if short {
		f.Severity = Error
	}
	return append(out, f)
}
