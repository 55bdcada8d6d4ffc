package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// MaxPorts is how many ports of a range are probed at most.
const MaxPorts = 1024

// dialPorts dials every port of a way, as many at once as there is room.
func (m *Meeting) dialPorts(ctx context.Context, w way, ports []uint16, there call) []Dial {
	out := make([]Dial, len(ports))
	var wait sync.WaitGroup
	for i, port := range ports {
		wait.Go(func() {
			m.room <- struct{}{}
			defer func() { <-m.room }()
			out[i] = dial(ctx, w.local, w.address, port, there.ID)
			out[i].To = there.Name
		})
	}
	wait.Wait()
	return out
}

// blocked reports the ports of a peer that do not answer, by what happens instead.
func blocked(dials []Dial, peer string) (out []Finding) {
	by := map[Outcome][]uint16{}
	for _, d := range dials {
		by[d.Outcome] = append(by[d.Outcome], d.Remote.Port())
	}
	for _, o := range []Outcome{Filtered, Refused, Unreachable, Stranger} {
		ports := by[o]
		if len(ports) == 0 {
			continue
		}
		first := dials[slices.IndexFunc(dials, func(d Dial) bool { return d.Outcome == o })]
		out = append(out, Finding{
			Check: "ports", Severity: Error, Where: Where{Interface: first.Interface, Peer: peer},
			What:     fmt.Sprintf("%d of the %d ports of comm.ports cannot be reached on %s: %s (%s)", len(ports), len(dials), peer, ranges(ports), meaning[o]),
			Evidence: first.String(),
			Fix:      fmt.Sprintf("open TCP ports %s between all hosts (iptables -L, nft list ruleset, the cloud's security group), or give other ones (comm.ports)", ranges(ports)),
		})
	}
	return out
}

// meaning says what an outcome other than Connected tells.
var meaning = map[Outcome]string{
	Filtered:    "filtered: no answer at all, as of a firewall that drops",
	Refused:     "refused: an RST came back though doctor listens there, as of a firewall that rejects",
	Unreachable: "unreachable: no route, or nobody has the address",
	Stranger:    "another host or program answers there: the address is taken twice, or translated",
}

// ranges writes ports as 40000-40003, 40007.
func ranges(ports []uint16) string {
	var out []string
	for i := 0; i < len(ports); {
		j := i
		for j+1 < len(ports) && ports[j+1] == ports[j]+1 {
			j++
		}
		s := fmt.Sprint(ports[i])
		if j > i {
			s += fmt.Sprintf("-%d", ports[j])
		}
		out = append(out, s)
		i = j + 1
	}
	return strings.Join(out, ", ")
}
