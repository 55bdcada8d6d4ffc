package comm

// LocalOn is Local with ranks that live on the hosts named, by rank, as far as
// shared memory goes.
func LocalOn(hosts []string, o Options) ([]*Group, error) {
	h := newHub()
	return join(len(hosts), func(rank int) Options {
		o := o
		o.Rank, o.Size, o.Store, o.hub = rank, len(hosts), h, nil
		o.Host, o.hostKey = hosts[rank], hosts[rank]
		return o
	})
}

// Store is where the group's ranks met.
func (g *Group) Store() Store { return g.o.Store }
