package comm

// Collectives that move data without arithmetic: each rank has something for each
// other, and sends it there directly.
//
// Cost: 1 step, as many bytes as the call's meaning asks for.

// allGatherDirect sends src to everybody.
func (f *flat) allGatherDirect(c *call) error {
	n := c.bytes(int(c.Count))
	copy(c.dst[f.x.me*n:], c.src)
	return f.spread(c,
		func(p int) ([]byte, bool) { return c.src, true },
		func(p int) ([]byte, bool) { return c.dst[p*n:][:n], true })
}

func (f *flat) gather(c *call) error {
	n, root := c.bytes(int(c.Count)), int(c.Root)
	if f.x.me == root {
		copy(c.dst[root*n:], c.src)
	}
	return f.spread(c,
		func(p int) ([]byte, bool) { return c.src, p == root },
		func(p int) ([]byte, bool) {
			if f.x.me != root {
				return nil, false
			}
			return c.dst[p*n:][:n], true
		})
}

func (f *flat) scatter(c *call) error {
	n, root := c.bytes(int(c.Count)), int(c.Root)
	if f.x.me == root {
		copy(c.dst, c.src[root*n:][:n])
	}
	return f.spread(c,
		func(p int) ([]byte, bool) {
			if f.x.me != root {
				return nil, false
			}
			return c.src[p*n:][:n], true
		},
		func(p int) ([]byte, bool) { return c.dst, p == root })
}

func (f *flat) allToAll(c *call) error {
	n := c.bytes(int(c.Count))
	from := func(p int) []byte { return c.src[p*n:][:n] }
	into := func(p int) []byte { return c.dst[p*n:][:n] }
	if c.sendCounts != nil {
		from = func(p int) []byte { return c.slot(c.src, c.sendCounts, p) }
		into = func(p int) []byte { return c.slot(c.dst, c.recvCounts, p) }
	}
	copy(into(f.x.me), from(f.x.me))
	return f.spread(c,
		func(p int) ([]byte, bool) { return from(p), true },
		func(p int) ([]byte, bool) { return into(p), true })
}

// slot is rank p's part of b, where parts of the given counts lie one after another.
func (c *call) slot(b []byte, counts []int, p int) []byte {
	at := 0
	for _, n := range counts[:p] {
		at += n
	}
	return b[c.bytes(at):c.bytes(at+counts[p])]
}

func (f *flat) sendTo(c *call) error {
	return f.spread(c,
		func(p int) ([]byte, bool) { return c.src, p == c.peer },
		func(int) ([]byte, bool) { return nil, false })
}

func (f *flat) recvFrom(c *call) error {
	return f.spread(c,
		func(int) ([]byte, bool) { return nil, false },
		func(p int) ([]byte, bool) { return c.dst, p == c.peer })
}

// spread sends out(p) to each other member p and receives in(p) from it, in chunks,
// where they report true. An empty slice is one empty message.
func (f *flat) spread(c *call, out, in func(p int) ([]byte, bool)) error {
	x, n, me := f.x, f.x.size(), f.x.me
	more := true
	for k := 0; more; k++ {
		more = false
		for i := 1; i < n; i++ {
			to, from := (me+i)%n, (me-i+n)%n
			if b, ok := out(to); ok {
				lo, hi := piece(0, len(b), f.chunk, k)
				if k == 0 || lo < hi {
					if _, err := x.send(to, b[lo:hi]); err != nil {
						return err
					}
				}
				more = more || hi < len(b)
			}
			if b, ok := in(from); ok {
				lo, hi := piece(0, len(b), f.chunk, k)
				if k == 0 || lo < hi {
					if _, err := x.recv(from, b[lo:hi]); err != nil {
						return err
					}
				}
				more = more || hi < len(b)
			}
			if err := x.waitRecv(from, x.recvs[from].posted-window); err != nil {
				return err
			}
			if err := x.waitSend(to, x.sends[to].posted-window); err != nil {
				return err
			}
		}
	}
	return x.drain()
}

// window is how many messages to one peer are under way at once.
const window = 4
