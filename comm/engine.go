package comm

import (
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// Op is how elements of several ranks become one. Sums and products of integers
// wrap around. Avg divides the sum by the number of ranks; for integers it drops
// the fraction.
type Op = transport.Op

const (
	Sum  = transport.Sum
	Avg  = transport.Avg
	Min  = transport.Min
	Max  = transport.Max
	Prod = transport.Prod
)

// call is a collective with its memory. Ranks in it (Root, peer) are those of the
// engine that runs it.
type call struct {
	transport.Call
	wire     transport.Header // what messages carry: the user's call
	dst, src []byte           // of a call on host memory; the same slice for calls in place
	to, from device.Buffer    // dst and src of a call on GPU memory
	peer     int              // of Send and Recv
	// For AllToAll: elements for and from each rank, nil where all are equal.
	sendCounts, recvCounts []int

	algorithm Algorithm     // set by the engine
	predicted time.Duration // set by the engine where the cost model has chosen
	memory    *[]byte       // of Alloc, set by the engine; nil where the ranks only meet in it
}

// step is a part of a larger call, in place.
func (c *call) step(k transport.Kind, count int, buf []byte) call {
	s := *c
	s.Kind, s.Count, s.Root, s.dst, s.src = k, uint64(count), -1, buf, buf
	if s.Op == Avg {
		s.Op = Sum // the larger call divides
	}
	return s
}

// bytes is the size of n elements of the call.
func (c *call) bytes(n int) int { return n * c.DType.Size() }

// engine carries out collectives among a fixed set of ranks, one at a time.
type engine interface {
	run(c *call) error
	// abort ends a running call with err, and all later ones.
	abort(err error)
	// stop ends an aborted engine: no memory of a call is touched once it returns.
	// What Alloc gave stays mapped, for others may be writing to it.
	stop()
	// close releases everything, Alloc's memory too.
	close() error
}

// reduce stores a op b in dst. Avg is a sum here, see finish.
func (c *call) reduce(dst, a, b []byte) {
	op := c.Op
	if op == Avg {
		op = Sum
	}
	vec.Reduce(c.DType, vec.Op(op), dst, a, b)
}

// finish divides the sum of n ranks for Avg.
func (c *call) finish(x []byte, n int) {
	if c.Op == Avg {
		vec.Divide(c.DType, x, n)
	}
}

// part returns element range [lo, hi) of part i when count elements are split
// into n parts as equal as can be.
func part(count, n, i int) (lo, hi int) {
	q, r := count/n, count%n
	lo = i*q + min(i, r)
	hi = lo + q
	if i < r {
		hi++
	}
	return lo, hi
}
