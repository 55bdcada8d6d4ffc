package comm

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

func init() {
	tuneSizes = tuneSizes[:2] // the others take their time
}

// LocalOn is Local with ranks that live on the hosts named, by rank, as far as
// shared memory goes. Options are the same for all ranks, or given for each.
func LocalOn(hosts []string, options ...Options) ([]*Group, error) {
	h := newHub()
	return join(len(hosts), func(rank int) Options {
		o := options[min(rank, len(options)-1)]
		o.Rank, o.Size, o.Store, o.hub = rank, len(hosts), h, nil
		o.Host, o.hostKey = hosts[rank], hosts[rank]
		if o.Tune == "" {
			o.Tune = "off"
		}
		return o
	})
}

// Store is where the group's ranks met.
func (g *Group) Store() Store { return g.o.Store }

// Impatient bounds this rank's calls from now on. It is Options.Timeout otherwise,
// which bounds joining too.
func (g *Group) Impatient(timeout time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.o.Timeout = timeout
}

// LocalMute is Local with a rank that cannot say where it is, as a stopped process
// cannot. It hears of the verdict.
func LocalMute(n, rank int, o Options) ([]*Group, error) {
	h := newHub()
	return join(n, func(r int) Options {
		o := o
		o.Rank, o.Size, o.Store, o.hub, o.Transport = r, n, h, h, "local"
		if r == rank {
			o.Store = mute{h}
		}
		return o
	})
}

type mute struct{ *hub }

func (m mute) Set(ctx context.Context, key string, value []byte) error {
	if strings.Contains(key, "/at/") {
		return errors.New("this rank is mute")
	}
	return m.hub.Set(ctx, key, value)
}

// Compare is what Check does before an AllReduce that this rank makes in a way that
// how tells.
func (g *Group) Compare(how string) error {
	c := &call{}
	c.Kind, c.Root, c.Count = transport.AllReduce, -1, 1
	g.mu.Lock()
	g.number(c)
	g.mu.Unlock()
	return g.compare(c, how)
}
