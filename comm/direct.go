package comm

import (
	"github.com/gorun-dev/gorun/runtime/vec"
)

// scratchLimit bounds the scratch memory of the direct algorithms.
const scratchLimit = 16 << 20

// allReduceDirect sends every part of the array to its owner, who sums all ranks'
// contributions in rank order and sends the sum to everybody. 16-bit floats are
// summed in float32 and rounded once.
//
// Cost: 2 steps, 2(n-1)/n of the array sent per rank.
func (f *flat) allReduceDirect(c *call) error {
	lo, hi := part(int(c.Count), f.x.size(), f.x.me)
	return f.sumParts(c, int(c.Count), c.dst[c.bytes(lo):c.bytes(hi)], everyRank)
}

// reduceScatterDirect is the first half of allReduceDirect.
func (f *flat) reduceScatterDirect(c *call) error {
	return f.sumParts(c, int(c.Count)*f.x.size(), c.dst, noRank)
}

// reduceDirect sums the parts as reduceScatterDirect does; the owners send them to
// the root.
func (f *flat) reduceDirect(c *call) error {
	lo, hi := part(int(c.Count), f.x.size(), f.x.me)
	sums := c.dst
	if f.x.me == int(c.Root) {
		return f.sumParts(c, int(c.Count), sums[c.bytes(lo):c.bytes(hi)], int(c.Root))
	}
	return f.sumParts(c, int(c.Count), make([]byte, c.bytes(hi-lo)), int(c.Root))
}

// Who gets the sums besides their owner.
const (
	noRank    = -1
	everyRank = -2
)

// sumParts splits total elements of src into a part for each rank. The sums of
// this rank's part go to mine; they are sent to rank `to` as well, which stores
// all parts in dst.
//
// Chunk k of the contributions travels while chunk k-1 is summed and sent on, so
// the messages between two ranks are c0 c1 s0 c2 s1 c3 s2 ... A sum arrives where
// a contribution was sent from only after the contribution was used.
func (f *flat) sumParts(c *call, total int, mine []byte, to int) error {
	x, n, me := f.x, f.x.size(), f.x.me
	_, biggest := part(total, n, 0)
	elems := f.chunkElems(c, biggest, min(f.chunk, scratchLimit/(2*n)))
	steps := max((biggest+elems-1)/elems, 1)
	stride := c.bytes(elems)
	temp := f.temp(2 * n * stride)
	myLo, myHi := part(total, n, me)
	t := &f.peers

	// Messages may be empty in the first step, so that even empty calls are compared.
	present := func(k, lo, hi int) bool { return k == 0 || lo < hi }
	for k := range steps + 1 {
		if k < steps {
			for i := 1; i < n; i++ {
				p := (me + i) % n
				if k > 1 {
					if err := x.waitSend(p, t.sends[p][k&1]); err != nil {
						return err
					}
				}
				pLo, pHi := part(total, n, p)
				var err error
				if lo, hi := piece(pLo, pHi, elems, k); present(k, lo, hi) {
					if t.sends[p][k&1], err = x.send(p, c.src[c.bytes(lo):c.bytes(hi)]); err != nil {
						return err
					}
				}
				if lo, hi := piece(myLo, myHi, elems, k); present(k, lo, hi) {
					slot := temp[(2*p+k&1)*stride:][:c.bytes(hi-lo)]
					if t.recvs[p][k&1], err = x.recv(p, slot); err != nil {
						return err
					}
				}
			}
		}
		if k == 0 {
			continue
		}
		j := k - 1
		lo, hi := piece(myLo, myHi, elems, j)
		have := present(j, lo, hi)
		sum := mine[c.bytes(lo-myLo):c.bytes(hi-myLo)]
		if have {
			t.srcs = t.srcs[:0]
			for p := range n {
				if p == me {
					t.srcs = append(t.srcs, c.src[c.bytes(lo):c.bytes(hi)])
					continue
				}
				if err := x.waitRecv(p, t.recvs[p][j&1]); err != nil {
					return err
				}
				t.srcs = append(t.srcs, temp[(2*p+j&1)*stride:][:c.bytes(hi-lo)])
			}
			t.dsts = append(t.dsts[:0], sum)
			vec.ReduceMany(c.DType, vec.Op(c.Op), t.dsts, t.srcs)
		}
		for i := 1; i < n; i++ {
			p := (me + i) % n
			if have && (to == everyRank || to == p) {
				if _, err := x.send(p, sum); err != nil {
					return err
				}
			}
			pLo, pHi := part(total, n, p)
			if pl, ph := piece(pLo, pHi, elems, j); present(j, pl, ph) && (to == everyRank || to == me) {
				if _, err := x.recv(p, c.dst[c.bytes(pl):c.bytes(ph)]); err != nil {
					return err
				}
			}
		}
	}
	return x.drain()
}
