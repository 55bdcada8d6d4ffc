package comm

// broadcastTree sends buf down a binomial tree.
//
// Cost: log2(n) steps; the root sends log2(n) times the array.
func (f *flat) broadcastTree(c *call) error {
	n := f.x.size()
	place := (f.x.me - int(c.Root) + n) % n // in the tree, whose root is 0
	parent, reach := -1, 1
	for reach < n && place&reach == 0 {
		reach <<= 1
	}
	if place != 0 {
		parent = place - reach
	}
	return f.relay(c, parent, func(i int) int {
		if child := place + reach>>(i+1); reach>>(i+1) > 0 && child < n {
			return child
		}
		return -1
	}, rounds(n))
}

// broadcastChain sends buf from rank to rank, chunk by chunk.
//
// Cost: n-1 steps for the first chunk; each rank sends the array once.
func (f *flat) broadcastChain(c *call) error {
	n := f.x.size()
	place := (f.x.me - int(c.Root) + n) % n
	return f.relay(c, place-1, func(i int) int {
		if i == 0 && place+1 < n {
			return place + 1
		}
		return -1
	}, 1)
}

// relay takes chunks from the parent and hands them to the children. Places count
// from the root; -1 is nobody.
func (f *flat) relay(c *call, parent int, child func(i int) int, children int) error {
	x, n := f.x, f.x.size()
	rank := func(place int) int { return (place + int(c.Root)) % n }
	pieces := max((len(c.dst)+f.chunk-1)/f.chunk, 1)
	posted := 0
	for k := range pieces {
		lo, hi := piece(0, len(c.dst), f.chunk, k)
		if parent >= 0 {
			p := rank(parent)
			for ; posted < min(k+window, pieces); posted++ {
				from, to := piece(0, len(c.dst), f.chunk, posted)
				if _, err := x.recv(p, c.dst[from:to]); err != nil {
					return err
				}
			}
			if err := x.waitRecv(p, x.recvs[p].posted-posted+k+1); err != nil {
				return err
			}
		}
		for i := range children {
			place := child(i)
			if place < 0 {
				continue
			}
			p := rank(place)
			if _, err := x.send(p, c.dst[lo:hi]); err != nil {
				return err
			}
			if err := x.waitSend(p, x.sends[p].posted-window); err != nil {
				return err
			}
		}
	}
	return x.drain()
}

// barrier returns when every rank has called it: in round i each rank tells the
// one 2^i places further.
func (f *flat) barrier(c *call) error {
	x, n, me := f.x, f.x.size(), f.x.me
	for d := 1; d < n; d <<= 1 {
		to, from := (me+d)%n, (me-d+n)%n
		if _, err := x.send(to, nil); err != nil {
			return err
		}
		if _, err := x.recv(from, nil); err != nil {
			return err
		}
		if err := x.drain(); err != nil {
			return err
		}
	}
	return nil
}
