package comm

import (
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/transport"
)

// twoLevel runs collectives in steps within hosts, through shared memory, and
// steps between them, over links. Hosts may have different numbers of ranks, in
// any order.
//
// Each rank has a place on its host. Ranks with equal places on all hosts form a
// lane; there are as many lanes as the smallest host has ranks, and each carries
// its share of what goes between hosts.
//
// 16-bit floats are rounded once within each host and once more between hosts.
type twoLevel struct {
	hosts [][]int
	host  int // of this rank
	place int // of this rank on its host
	local *shared
	lane  *flat // nil where this rank is in none
	all   *flat // every rank
}

// laneBytes is the least that is worth a lane of its own.
const laneBytes = 64 << 10

func newTwoLevel(hosts [][]int, me int, local *shared, l links, all *flat, o engineOptions) *twoLevel {
	t := &twoLevel{hosts: hosts, local: local, all: all}
	for h, ranks := range hosts {
		if p := slices.Index(ranks, me); p >= 0 {
			t.host, t.place = h, p
		}
	}
	if t.place < t.lanes() {
		var ranks []int
		for _, h := range hosts {
			ranks = append(ranks, h[t.place])
		}
		t.lane = newFlat(newExchange(l, ranks, t.host), o)
	}
	return t
}

func (t *twoLevel) lanes() int {
	n := len(t.hosts[0])
	for _, h := range t.hosts {
		n = min(n, len(h))
	}
	return n
}

// even reports whether all hosts have as many ranks.
func (t *twoLevel) even() bool {
	return !slices.ContainsFunc(t.hosts, func(h []int) bool { return len(h) != len(t.hosts[0]) })
}

func (t *twoLevel) abort(err error) {
	t.all.abort(err)
	t.local.abort(err)
}

func (t *twoLevel) stop() {
	t.all.stop()
	t.local.stop()
}

func (t *twoLevel) close() error {
	err := t.all.close()
	if e := t.local.close(); err == nil {
		err = e
	}
	return err
}

func (t *twoLevel) run(c *call) error {
	if c.Kind == transport.Send { // of two ranks alone
		return t.all.run(c)
	}
	// The host's ranks compare the whole call before they take it apart: an error
	// names calls, not steps. Between hosts every message carries the call.
	err := t.local.team.Barrier(transport.Call{Header: c.wire, Deadline: c.Deadline})
	if err != nil {
		return err
	}
	switch c.Kind {
	case transport.AllReduce:
		err = t.allReduce(c)
	case transport.ReduceScatter:
		err = t.reduceScatter(c)
	case transport.AllGather:
		err = t.allGather(c)
	case transport.Broadcast:
		err = t.broadcast(c)
	case transport.Reduce:
		err = t.reduce(c)
	case transport.Barrier, transport.Alloc:
		err = t.barrier(c)
	default: // every byte has one way to go: no level helps
		return t.all.run(c)
	}
	c.algorithm = TwoLevel
	return err
}

// on is the rank of host h that stands for rank r: r itself on its own host.
func (t *twoLevel) on(h, r int) int {
	for i, ranks := range t.hosts {
		if p := slices.Index(ranks, r); p >= 0 {
			if i == h {
				return r
			}
			return t.hosts[h][p%len(t.hosts[h])]
		}
	}
	panic(fmt.Sprintf("comm: rank %d is on no host", r))
}

// within runs one step on this rank's host; root is a rank of the group.
func (t *twoLevel) within(s call, root int) error {
	if root >= 0 {
		s.Root = int32(slices.Index(t.hosts[t.host], root))
	}
	return t.local.run(&s)
}

// allReduce sums within the host, each lane then sums its share between the
// hosts, and the host spreads the sums.
//
// Cost between hosts, with H of them: 2(H-1)/H of the array sent per host.
func (t *twoLevel) allReduce(c *call) error {
	count, ranks := int(c.Count), len(t.hosts[t.host])
	if t.even() && count%ranks == 0 && len(c.dst) >= laneBytes*ranks {
		n := count / ranks
		own := c.dst[t.place*c.bytes(n):][:c.bytes(n)]
		s := c.step(transport.ReduceScatter, n, own)
		s.src = c.src
		if err := t.within(s, -1); err != nil {
			return err
		}
		if err := t.across(c, own, n); err != nil {
			return err
		}
		s = c.step(transport.AllGather, n, own)
		s.dst = c.dst
		return t.within(s, -1)
	}
	lanes := min(t.lanes(), max(len(c.dst)/laneBytes, 1))
	for lane := range lanes {
		lo, hi := part(count, lanes, lane)
		s := c.step(transport.Reduce, hi-lo, c.dst[c.bytes(lo):c.bytes(hi)])
		s.src = c.src[c.bytes(lo):c.bytes(hi)]
		if err := t.within(s, t.hosts[t.host][lane]); err != nil {
			return err
		}
	}
	if t.place < lanes {
		lo, hi := part(count, lanes, t.place)
		if err := t.across(c, c.dst[c.bytes(lo):c.bytes(hi)], hi-lo); err != nil {
			return err
		}
	}
	for lane := range lanes {
		lo, hi := part(count, lanes, lane)
		s := c.step(transport.Broadcast, hi-lo, c.dst[c.bytes(lo):c.bytes(hi)])
		if err := t.within(s, t.hosts[t.host][lane]); err != nil {
			return err
		}
	}
	return nil
}

// across sums buf over this rank's lane, and divides where the call is an average.
func (t *twoLevel) across(c *call, buf []byte, count int) error {
	s := c.step(transport.AllReduce, count, buf)
	if err := t.lane.run(&s); err != nil {
		return err
	}
	c.finish(buf, t.all.x.size())
	return nil
}

func (t *twoLevel) barrier(c *call) error {
	if t.place == 0 { // the ranks of the host have met already
		s := c.step(transport.Barrier, 0, nil)
		if err := t.lane.run(&s); err != nil {
			return err
		}
	}
	if c.Kind == transport.Alloc {
		if err := t.within(*c, -1); err != nil {
			return err
		}
		if a, ok := t.all.x.links.(adopter); ok && c.memory != nil {
			return a.Adopt(*c.memory)
		}
		return nil
	}
	return t.within(c.step(transport.Barrier, 0, nil), -1)
}

// broadcast goes from root to one rank of each other host, and from there to all.
func (t *twoLevel) broadcast(c *call) error {
	root := int(c.Root)
	here := t.on(t.host, root)
	t.all.begin(c)
	err := t.all.spread(c,
		func(p int) ([]byte, bool) { return c.dst, t.me() == root && t.stands(p, root) },
		func(p int) ([]byte, bool) { return c.dst, p == root && here == t.me() })
	if err != nil {
		return err
	}
	return t.within(c.step(transport.Broadcast, int(c.Count), c.dst), here)
}

func (t *twoLevel) me() int { return t.hosts[t.host][t.place] }

// stands reports whether rank p stands for rank r on a host that is not r's.
func (t *twoLevel) stands(p, r int) bool {
	for h := range t.hosts {
		if p != r && t.on(h, r) == p {
			return true
		}
	}
	return false
}

// allGather sends each part to one rank of each other host; each host then spreads
// all parts.
func (t *twoLevel) allGather(c *call) error {
	me, n := t.me(), c.bytes(int(c.Count))
	part := func(r int) []byte { return c.dst[r*n:][:n] }
	copy(part(me), c.src)
	t.all.begin(c)
	err := t.all.spread(c,
		func(p int) ([]byte, bool) { return part(me), t.stands(p, me) },
		func(p int) ([]byte, bool) { return part(p), t.stands(me, p) })
	if err != nil {
		return err
	}
	for r := range t.all.x.size() {
		if err := t.within(c.step(transport.Broadcast, int(c.Count), part(r)), t.on(t.host, r)); err != nil {
			return err
		}
	}
	return nil
}

// reduce sums within each host; the sums go to root.
func (t *twoLevel) reduce(c *call) error {
	return t.collect(c, []int{int(c.Root)}, func(int) []byte { return c.src })
}

// reduceScatter is a reduce of each part to its owner.
func (t *twoLevel) reduceScatter(c *call) error {
	n := c.bytes(int(c.Count))
	owners := make([]int, t.all.x.size())
	for r := range owners {
		owners[r] = r
	}
	return t.collect(c, owners, func(r int) []byte { return c.src[r*n:][:n] })
}

// collect gives each owner the sum of all ranks' src(owner). Every host sums first,
// on the rank that stands there for the owner.
func (t *twoLevel) collect(c *call, owners []int, src func(owner int) []byte) error {
	me, n := t.me(), c.bytes(int(c.Count))
	sums := map[int][]byte{} // that this rank makes, by owner
	for _, r := range owners {
		s := c.step(transport.Reduce, int(c.Count), nil)
		s.src = src(r)
		if t.on(t.host, r) == me {
			s.dst = make([]byte, n)
			sums[r] = s.dst
		}
		if err := t.within(s, t.on(t.host, r)); err != nil {
			return err
		}
	}
	others := map[int][]byte{} // sums of other hosts for this rank, by sender
	if slices.Contains(owners, me) {
		for h := range t.hosts {
			if p := t.on(h, me); p != me {
				others[p] = make([]byte, n)
			}
		}
	}
	t.all.begin(c)
	err := t.all.spread(c,
		func(p int) ([]byte, bool) { b, ok := sums[p]; return b, ok },
		func(p int) ([]byte, bool) { b, ok := others[p]; return b, ok })
	if err != nil || !slices.Contains(owners, me) {
		return err
	}
	sum := c.dst
	for h := range t.hosts { // in the order of hosts
		next := sums[me]
		if p := t.on(h, me); p != me {
			next = others[p]
		}
		if h == 0 {
			copy(sum, next)
			continue
		}
		c.reduce(sum, sum, next)
	}
	c.finish(sum, t.all.x.size())
	return nil
}
