package comm

import (
	"math/bits"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// allReduceOneShot sends the array to everybody; each rank sums all of them in
// rank order. 16-bit floats are summed in float32 and rounded once.
//
// Cost: 1 step, n-1 times the array sent per rank.
func (f *flat) allReduceOneShot(c *call) error {
	x, n, me := f.x, f.x.size(), f.x.me
	size := len(c.src)
	temp := f.temp(n * size)
	t := &f.peers
	t.srcs = t.srcs[:0]
	for p := range n {
		t.srcs = append(t.srcs, temp[p*size:][:size])
	}
	t.srcs[me] = c.src
	for i := 1; i < n; i++ {
		to, from := (me+i)%n, (me-i+n)%n
		if _, err := x.send(to, c.src); err != nil {
			return err
		}
		if _, err := x.recv(from, t.srcs[from]); err != nil {
			return err
		}
	}
	// The sends must end too before dst, which may be src, is written.
	if err := x.drain(); err != nil {
		return err
	}
	t.dsts = append(t.dsts[:0], c.dst)
	vec.ReduceMany(c.DType, vec.Op(c.Op), t.dsts, t.srcs)
	return nil
}

// allReduceDoubling exchanges sums with partners at distance 1, 2, 4, ... Where n
// is no power of two, the first ranks hand their array to a neighbour and get the
// result from it. The lower rank's sum is always the left operand, so all ranks
// get the same bits. 16-bit floats travel and are summed as float32.
//
// Cost: log2(n) steps (2 more where n is no power of two), each with the array.
func (f *flat) allReduceDoubling(c *call) error {
	x, n, me := f.x, f.x.size(), f.x.me
	wide := *c // the call in the type that is summed
	half := c.DType == dtype.F16 || c.DType == dtype.BF16
	if half {
		wide.DType = dtype.F32
	}
	size := wide.bytes(int(c.Count))
	temp := f.temp(2 * size)
	acc, other := temp[:size], temp[size:]
	if half {
		vec.Widen(c.DType, device.View[float32](device.Host(acc)), c.src)
	} else {
		copy(acc, c.src)
	}

	whole := 1 << (bits.Len(uint(n)) - 1) // ranks that take part in the exchange
	extra := n - whole
	swap := func(p int) error {
		if _, err := x.send(p, acc); err != nil {
			return err
		}
		if _, err := x.recv(p, other); err != nil {
			return err
		}
		if err := x.drain(); err != nil {
			return err
		}
		if p < me {
			wide.reduce(acc, other, acc)
		} else {
			wide.reduce(acc, acc, other)
		}
		return nil
	}
	switch place := me - extra; {
	case me < 2*extra && me%2 == 0: // hands its array over
		if _, err := x.send(me+1, acc); err != nil {
			return err
		}
		if err := x.drain(); err != nil {
			return err
		}
		if _, err := x.recv(me+1, acc); err != nil {
			return err
		}
	default:
		if me < 2*extra {
			if _, err := x.recv(me-1, other); err != nil {
				return err
			}
			if err := x.drain(); err != nil {
				return err
			}
			wide.reduce(acc, other, acc)
			place = me / 2
		}
		for d := 1; d < whole; d <<= 1 {
			p := place ^ d
			if p < extra {
				p = 2*p + 1
			} else {
				p += extra
			}
			if err := swap(p); err != nil {
				return err
			}
		}
		if me < 2*extra {
			if _, err := x.send(me-1, acc); err != nil {
				return err
			}
		}
	}
	if err := x.drain(); err != nil {
		return err
	}
	wide.finish(acc, n)
	if half {
		vec.Narrow(c.DType, c.dst, device.View[float32](device.Host(acc)))
	} else {
		copy(c.dst, acc)
	}
	return nil
}

func rounds(n int) int { return bits.Len(uint(n - 1)) }
