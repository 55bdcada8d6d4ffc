package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// Ports looks at the ports from first to last, comm.ports, on a host that meets no other:
// whether a job may listen there.
func Ports(ctx context.Context, m *Machine, first, last int) (e Examination) {
	a, err := newAnswerer(ctx, netip.Addr{}, first, last, time.Now)
	if err != nil {
		e.unseen("ports", m.Name, []error{err})
		return e
	}
	defer a.close()
	e.Findings = m.ports(len(a.ports), a.busy)
	return e
}

// ports reports those of comm.ports that another program has, beside so many free ones, and
// a range that is too small.
func (m *Machine) ports(free int, busy []uint16) []Finding {
	f := Finding{
		Check: "ports", Severity: Note, Where: Where{Host: m.Name},
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
	case short:
		f.What = fmt.Sprintf("comm.ports has %s for %s", plural(free, "port"), plural(m.Workers, "worker"))
		f.Evidence = "none is in use by another program"
		f.Fix = "give a larger range: every worker of a host needs a port for each group"
	default:
		return nil
	}
	if short {
		f.Severity = Error
	}
	return []Finding{f}
}
