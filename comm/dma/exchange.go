package dma

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Call is a collective for kernels, as comm's Group has it. From and To are any memory
// of the GPU, from any address on: To.Len() and From.Len() are those of the Group's
// call, and so is what may overlap. On ranks that do not use one of them it is empty.
type Call struct {
	transport.Header
	To, From               device.Buffer
	SendCounts, RecvCounts []int // of an AllToAllV: elements for and from each rank
	Peer                   int   // of a Send: to Root, or from here where this rank is Root
}

// Exchange carries out a collective, or a Send or Recv, by kernels that write to the other
// GPUs' memory. All types and operations; sums in the order of the ranks, 16-bit floats in
// f32 and rounded once, so all ranks have the same bits. Arrays that are larger than the
// team's memory for them go in rounds. It enqueues on s and returns.
//
// Collectives are enqueued in one order, of which AllToAllV, Send and Recv are no part:
// those between two ranks in one direction are in an order of their own.
func (t *Team) Exchange(s *cuda.Stream, c *Call) error {
	t.enqueuing.Lock()
	defer t.enqueuing.Unlock()
	if c.pair() {
		return t.pairs(s, c)
	}
	n := int(c.Count) * c.DType.Size()
	if n == 0 && c.Kind != transport.Barrier {
		return t.going(s)
	}
	first := t.calls + 1
	step := inbox{t.size}.room()
	if t.way(c.Kind, c.DType, n) == TwoShot {
		step *= t.size
	}
	for at := 0; at == 0 || at < n; at += step {
		if err := t.going(s); err != nil {
			return err
		}
		if err := t.exchangeRound(s, c, at, min(step, n-at)); err != nil {
			return err
		}
	}
	t.mark(s, first)
	return s.Err()
}

// exchangeRound moves n bytes of what each rank has for each other, from byte at on.
func (t *Team) exchangeRound(s *cuda.Stream, c *Call, at, n int) error {
	way := t.way(c.Kind, c.DType, n)
	m := t.moves(c, at, n)
	kernel := "move_" + string(way)
	if way == TwoShot {
		t.cut(m, at, n)
		kernel = "two_shot_" + c.DType.String()
	} else if sums(c.Kind) {
		kernel = "sum_" + string(way) + "_" + c.DType.String()
	}
	if t.kernels[kernel] == nil {
		return fmt.Errorf("kernels between GPUs: no kernel %s for %s", kernel, c.Header)
	}
	m.grid = t.grid(way, n)
	t.launch(s, kernel, m, int32(c.Op))
	return s.Err()
}

// moves is what a kernel moves: bytes of src for each rank, and of dst from each.
type moves struct {
	src, dst      device.Buffer
	sendAt, sends [MaxRanks]int64
	recvAt, recvs [MaxRanks]int64
	grid          cuda.Grid
}

func sums(k transport.Kind) bool {
	return k == transport.AllReduce || k == transport.ReduceScatter || k == transport.Reduce
}

// moves is what a call moves in a round of n bytes from byte at on, of Count elements.
func (t *Team) moves(c *Call, at, n int) *moves {
	m := &t.moving
	*m = moves{src: c.From, dst: c.To}
	count, root := int64(c.Count)*int64(c.DType.Size()), int(c.Root)
	send := func(p int, from int64) { m.sendAt[p], m.sends[p] = from+int64(at), int64(n) }
	recv := func(p int, to int64) { m.recvAt[p], m.recvs[p] = to+int64(at), int64(n) }
	for p := range t.size {
		part := int64(p) * count
		switch c.Kind {
		case transport.AllReduce:
			send(p, 0)
			recv(p, 0)
		case transport.ReduceScatter:
			send(p, part)
			recv(p, 0)
		case transport.AllGather:
			send(p, 0)
			recv(p, part)
		case transport.AllToAll:
			send(p, part)
			recv(p, part)
		case transport.Broadcast:
			if t.me == root && p != root {
				send(p, 0)
			} else if t.me != root && p == root {
				recv(p, 0)
			}
		case transport.Reduce:
			if p == root {
				send(p, 0)
			}
			if t.me == root {
				recv(p, 0)
			}
		case transport.Gather:
			if p == root {
				send(p, 0)
			}
			if t.me == root {
				recv(p, part)
			}
		case transport.Scatter:
			if t.me == root {
				send(p, part)
			}
			if p == root {
				recv(p, 0)
			}
		}
	}
	return m
}

// cut makes of an AllReduce's round one in two steps: part p of it is for rank p.
func (t *Team) cut(m *moves, at, n int) {
	const unit = 16
	part := ((n+t.size-1)/t.size + unit - 1) / unit * unit // at most the room of a slot
	for p := range t.size {
		from, to := min(p*part, n), min((p+1)*part, n)
		m.sendAt[p], m.sends[p] = int64(at+from), int64(to-from)
	}
}
