package comm

// depth is how many pieces of a part go round the ring behind each other: one is
// summed while the next ones travel.
const depth = 4

// ring passes pieces to the right, steps times. In step s each rank sends the
// pieces out(s, q), q < depth, and receives into into(s, q); arrived(s, q) runs
// once piece q is there, and makes what out(s+1, q) returns. When into(s+1, q) is
// posted, the sends of step s-1 have ended.
func (f *flat) ring(steps int, out, into func(s, q int) []byte, arrived func(s, q int)) error {
	x, n := f.x, f.x.size()
	right, left := (x.me+1)%n, (x.me-1+n)%n
	sent, received := x.sends[right].posted, x.recvs[left].posted
	for q := range depth {
		if _, err := x.recv(left, into(0, q)); err != nil {
			return err
		}
		if _, err := x.send(right, out(0, q)); err != nil {
			return err
		}
	}
	for s := range steps {
		last := s+1 == steps
		if !last {
			if err := x.waitSend(right, sent+s*depth); err != nil {
				return err
			}
			for q := range depth {
				if _, err := x.recv(left, into(s+1, q)); err != nil {
					return err
				}
			}
		}
		for q := range depth {
			if err := x.waitRecv(left, received+s*depth+q+1); err != nil {
				return err
			}
			arrived(s, q)
			if last {
				continue
			}
			if _, err := x.send(right, out(s+1, q)); err != nil {
				return err
			}
		}
	}
	return x.drain()
}

// turns is how often the ring is run for parts of count elements, so that no
// piece exceeds a chunk.
func (f *flat) turns(c *call, count int) int {
	most := depth * max(f.chunk/c.DType.Size(), 1)
	return max((count+most-1)/most, 1)
}

func mod(a, n int) int { return ((a % n) + n) % n }

// allReduceRing sums part by part on the way round, and sends the sums round once
// more. Partial sums lie in dst. 16-bit floats are rounded at every rank.
//
// Cost: 2(n-1) steps, 2(n-1)/n of the array sent per rank, to one neighbour.
func (f *flat) allReduceRing(c *call) error {
	n, me, count := f.x.size(), f.x.me, int(c.Count)
	turns := f.turns(c, (count+n-1)/n)
	for turn := range turns {
		from, to := part(count, turns, turn)
		at := func(seg, q int) (lo, hi int) {
			lo, hi = part(to-from, n*depth, mod(seg, n)*depth+q)
			return c.bytes(from + lo), c.bytes(from + hi)
		}
		_, most := part(to-from, n*depth, 0)
		slot := c.bytes(most)
		temp := f.temp(2 * depth * slot)
		inSlot := func(s, q, size int) []byte { return temp[(s%2*depth+q)*slot:][:size] }
		err := f.ring(2*(n-1),
			func(s, q int) []byte {
				lo, hi := at(me-s, q)
				if s == 0 {
					return c.src[lo:hi]
				}
				return c.dst[lo:hi]
			},
			func(s, q int) []byte {
				lo, hi := at(me-s-1, q)
				if s < n-1 {
					return inSlot(s, q, hi-lo)
				}
				return c.dst[lo:hi]
			},
			func(s, q int) {
				if s >= n-1 {
					return
				}
				lo, hi := at(me-s-1, q)
				c.reduce(c.dst[lo:hi], inSlot(s, q, hi-lo), c.src[lo:hi])
				if s == n-2 {
					c.finish(c.dst[lo:hi], n)
				}
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// reduceScatterRing is the first half of allReduceRing, ending at the part's
// owner. Partial sums lie in scratch memory, for src stays as it is.
//
// Cost: n-1 steps, (n-1)/n of src sent per rank.
func (f *flat) reduceScatterRing(c *call) error {
	n, me, count := f.x.size(), f.x.me, int(c.Count)
	turns := f.turns(c, count)
	for turn := range turns {
		from, to := part(count, turns, turn)
		at := func(q int) (lo, hi int) {
			lo, hi = part(to-from, depth, q)
			return c.bytes(from + lo), c.bytes(from + hi)
		}
		mine := func(seg, q int) []byte {
			lo, hi := at(q)
			return c.src[mod(seg, n)*c.bytes(count):][lo:hi]
		}
		_, most := part(to-from, depth, 0)
		slot := c.bytes(most)
		temp := f.temp(3 * depth * slot)
		inSlot := func(s, q int) []byte {
			lo, hi := at(q)
			return temp[(s%3*depth+q)*slot:][:hi-lo]
		}
		err := f.ring(n-1,
			func(s, q int) []byte {
				if s == 0 {
					return mine(me-1, q)
				}
				return inSlot(s-1, q)
			},
			inSlot,
			func(s, q int) {
				sum := inSlot(s, q)
				if s == n-2 {
					lo, hi := at(q)
					c.reduce(c.dst[lo:hi], sum, mine(me, q))
					c.finish(c.dst[lo:hi], n)
					return
				}
				c.reduce(sum, sum, mine(me-s-2, q))
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// allGatherRing passes every rank's part round.
//
// Cost: n-1 steps, (n-1)/n of dst sent per rank.
func (f *flat) allGatherRing(c *call) error {
	n, me, count := f.x.size(), f.x.me, int(c.Count)
	copy(c.dst[me*c.bytes(count):], c.src)
	turns := f.turns(c, count)
	for turn := range turns {
		from, to := part(count, turns, turn)
		at := func(seg, q int) []byte {
			lo, hi := part(to-from, depth, q)
			return c.dst[mod(seg, n)*c.bytes(count):][c.bytes(from+lo):c.bytes(from+hi)]
		}
		err := f.ring(n-1,
			func(s, q int) []byte { return at(me-s, q) },
			func(s, q int) []byte { return at(me-s-1, q) },
			func(int, int) {})
		if err != nil {
			return err
		}
	}
	return nil
}
