package rdma

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// Spot is where a rank is on its host: what its port should be near to.
type Spot struct {
	System *topology.System
	Of     topology.Node // the rank's GPU, or the NUMA node that it runs on; nil: neither is known
	Why    string        // what Of is, or why there is none
}

// Near is the ports that are as near to a rank as any. A rank tells it to the others of
// its host, which share the ports out without another word: see Share.
type Near struct {
	Ports []string      // device:port, in the host's order
	Path  topology.Path // to each of them; "" where that is not known, and all ports are in the list
	Why   string        // in words
}

// Nearest finds them among the ports that s does not exclude. No port at all is the
// error of Usable.
func Nearest(api *verbs.API, s Settings, at Spot) (Near, error) {
	api, err := loaded(api)
	if err != nil {
		return Near{}, err
	}
	ports, err := usable(api, s)
	if err != nil {
		return Near{}, err
	}
	near := Near{Why: at.Why}
	var cards []*topology.NIC
	if at.Of != nil {
		var known []*topology.NIC
		for _, p := range ports {
			if card := at.System.NIC(p.Device); card != nil && !slices.Contains(known, card) {
				known = append(known, card)
			}
		}
		if cards, near.Path = at.System.Nearest(at.Of, known); len(cards) == 0 {
			near.Path, near.Why = "", at.Why+", to which no path is known"
		}
	}
	for _, p := range ports {
		if len(cards) == 0 || slices.Contains(cards, at.System.NIC(p.Device)) {
			near.Ports = append(near.Ports, p.name())
		}
	}
	what := "nearest to "
	if near.Path == "" {
		what = "no port is nearest: "
	}
	near.Why = what + near.Why
	if n := len(near.Ports); n > 1 {
		near.Why += fmt.Sprintf("; shared out in turn: %s", strings.Join(near.Ports, ", "))
	}
	return near, nil
}

// Share gives each rank of a host one of the ports that are near to it, so that each port
// serves about as many ranks as the others. What it makes of the same list is the same on
// all ranks, and on hosts alike.
func Share(ranks []Near) []string {
	order := make([]int, len(ranks))
	for i := range order {
		order[i] = i
	}
	// Who has the least choice goes first.
	slices.SortStableFunc(order, func(a, b int) int { return len(ranks[a].Ports) - len(ranks[b].Ports) })
	got, users := make([]string, len(ranks)), map[string]int{}
	for _, r := range order {
		for _, p := range ranks[r].Ports {
			if got[r] == "" || users[p] < users[got[r]] {
				got[r] = p
			}
		}
		users[got[r]]++
	}
	return got
}

// name is what Near calls a port, and Options.Port.
func (p port) name() string { return fmt.Sprintf("%s:%d", p.Device, p.Number) }

// pick is the port of a name; the first, where there is none.
func pick(ports []port, name string) (port, error) {
	i := slices.IndexFunc(ports, func(p port) bool { return name == "" || p.name() == name })
	if i < 0 {
		var there []string
		for _, p := range ports {
			there = append(there, p.name())
		}
		return port{}, fmt.Errorf("%w: %s, which this rank has chosen, is usable no more; %s is: has its link gone down?", ErrNone, name, strings.Join(there, ", "))
	}
	return ports[i], nil
}

// loaded is the system's libibverbs where api is nil.
func loaded(api *verbs.API) (*verbs.API, error) {
	if api != nil {
		return api, nil
	}
	return verbs.Load()
}
