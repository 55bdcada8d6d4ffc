package comm

import (
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/comm/transport"
)

// flat runs collectives over links alone, whatever lies between the ranks.
type flat struct {
	x     *exchange
	cost  cost
	chunk int // bytes of the largest message
	algo  Algorithm
	rules familyRules // NCCL_ALGO
	log   *slog.Logger

	tuned *tuning // what was measured of the links; shared by the group's engines

	scratch []byte
	peers   peerTable
	chosen  chosen
}

// peerTable is what the direct algorithms keep for each member.
type peerTable struct {
	srcs, dsts [][]byte
	recvs      [][2]int // tickets, by parity of the step
	sends      [][2]int
	slots      [][2][]byte
}

func newFlat(x *exchange, o engineOptions) *flat {
	n := x.size()
	return &flat{x: x, cost: o.cost, chunk: o.chunk, algo: o.algo, rules: o.rules, log: o.log, tuned: o.tuned,
		peers: peerTable{make([][]byte, n), make([][]byte, 1), make([][2]int, n), make([][2]int, n), make([][2][]byte, n)}}
}

// engineOptions is what all engines of a group share.
type engineOptions struct {
	cost  cost
	chunk int
	algo  Algorithm
	rules familyRules
	log   *slog.Logger
	tuned *tuning
}

func (f *flat) abort(err error) { f.x.links.Abort(err) }
func (f *flat) stop()           { f.x.links.Close() }
func (f *flat) close() error    { return f.x.links.Close() }

// begin makes c the call to which messages belong from here on.
func (f *flat) begin(c *call) { f.x.call = transport.Call{Header: c.wire, Deadline: c.Deadline} }

func (f *flat) run(c *call) error {
	c.algorithm, c.predicted = f.choose(c)
	return f.carryOut(c)
}

// carryOut is run by the algorithm that the call has.
func (f *flat) carryOut(c *call) error {
	f.begin(c)
	if c.memory != nil {
		var err error
		if *c.memory, err = f.alloc(int(c.Count)); err != nil {
			return err
		}
	}
	if f.x.size() == 1 {
		copy(c.dst, c.src)
		return nil
	}
	switch c.Kind {
	case transport.AllReduce:
		switch c.algorithm {
		case OneShot:
			return f.allReduceOneShot(c)
		case Doubling:
			return f.allReduceDoubling(c)
		case Ring:
			return f.allReduceRing(c)
		}
		return f.allReduceDirect(c)
	case transport.ReduceScatter:
		if c.algorithm == Ring {
			return f.reduceScatterRing(c)
		}
		return f.reduceScatterDirect(c)
	case transport.AllGather:
		if c.algorithm == Ring {
			return f.allGatherRing(c)
		}
		return f.allGatherDirect(c)
	case transport.Broadcast:
		if c.algorithm == Chain {
			return f.broadcastChain(c)
		}
		return f.broadcastTree(c)
	case transport.Reduce:
		return f.reduceDirect(c)
	case transport.Gather:
		return f.gather(c)
	case transport.Scatter:
		return f.scatter(c)
	case transport.AllToAll:
		return f.allToAll(c)
	case transport.Send:
		if c.peer == int(c.Root) {
			return f.sendTo(c)
		}
		return f.recvFrom(c)
	case transport.Barrier, transport.Alloc:
		return f.barrier(c)
	}
	return fmt.Errorf("no such collective: %s", c.Header)
}

// temp returns n bytes of scratch memory, valid until the next call of temp.
func (f *flat) temp(n int) []byte {
	if cap(f.scratch) < n {
		var err error
		if f.scratch, err = f.alloc(n); err != nil {
			f.log.Warn("comm: what is received is copied once more than need be", "err", err)
			f.scratch = make([]byte, n)
		}
	}
	return f.scratch[:n]
}

// chunkElems is how many elements a message carries when a stretch of count
// elements is cut into equal pieces of at most limit bytes.
func (f *flat) chunkElems(c *call, count, limit int) int {
	size := c.DType.Size()
	most := max(limit/size, 1)
	pieces := max((count+most-1)/most, 1)
	return max((count+pieces-1)/pieces, 1)
}

// piece k of length elems of the stretch [lo, hi), which may be empty.
func piece(lo, hi, elems, k int) (from, to int) {
	return min(lo+k*elems, hi), min(lo+(k+1)*elems, hi)
}
