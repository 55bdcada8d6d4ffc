package compress

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Hook reduces gradient buckets in another way than a group would. ddp.Options and
// zero.PlanOptions take one; *Compressor is one. It belongs to one DDP or Zero of one
// rank, whose goroutine makes all calls. Groups of one rank do without it.
type Hook interface {
	// String names the scheme and its settings. Ranks compare it.
	fmt.Stringer
	// Cost is what one reduction of all buckets of l takes. It is a pure function: plans
	// ask for it before anything is allocated.
	Cost(l Layout) Cost
	// Open gets the memory for the buckets of l. It is called by New, and again, between
	// two windows, where ddp lays its buckets out anew: what is kept for a parameter
	// stays with it. Every rank calls it with the same l.
	Open(e Env, l Layout) error
	// Begin says that a window begins: a step's micro-steps, whose gradients are added up.
	Begin()
	// Reduce enqueues the reduction of bucket i on s, which is a stream of e.Device, and
	// returns at once. flat [Numel] of DType is the rank's gradients. The sum over the
	// ranks (or mean, as e.Op says) replaces them; under Layout.Scatter it is returned
	// instead: this rank's part in f32, [Numel/Ranks], which the next Reduce may
	// overwrite, and what flat then holds is undefined. sent is the bytes that this rank
	// sends for it.
	//
	// A sum that is none means that the hook leaves the bucket alone: the caller reduces
	// it in the usual way.
	//
	// What goes wrong on the stream fails it, as a collective does.
	Reduce(s device.Stream, i int, flat tensor.Tensor) (sum tensor.Tensor, sent int64)
}

// Layout is where gradients lie, and who gets their sums.
type Layout struct {
	Ranks int
	// Scatter gives each rank its own part of every bucket, the part's number being the
	// rank's; false gives everything to all.
	Scatter bool
	Buckets []Bucket // in the order of reduction
}

// Bucket is gradients that are reduced at once.
type Bucket struct {
	DType   dtype.DType
	Numel   int // elements, with what lies between and behind the parameters; under Scatter a multiple of 64 for each rank
	Params  []*param.Param
	Offsets []int // of each, in elements
}

// Cost is bytes of one rank.
type Cost struct {
	Sent   int64 // for one reduction of each bucket
	Plain  int64 // what it would be without a hook
	Memory int64 // that Open gets
	State  int64 // of Compressor.State, a part of Memory's
}

// Env is where a hook works.
type Env struct {
	Group  Group
	Op     comm.Op       // Sum or Avg
	Device device.Device // where gradients lie
	Memory Memory
	// Private gets zeroed memory of Device, Shared such as the group moves fastest; every
	// rank calls Shared with the same sizes in the same order. Whoever gave memory frees it.
	Private, Shared func(bytes int) (device.Buffer, error)
	// Pinned gets host memory that Device copies to without staging.
	Pinned func(bytes int) (device.Buffer, error)
}

// Group is what hooks need of a process group; *comm.Group is one.
type Group interface {
	Rank() int
	AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work
	// AllGather writes all ranks' src to dst, in the order of the ranks.
	AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work
	// AllToAll sends part p of src to rank p, who stores it as part r of dst, r being
	// this rank.
	AllToAll(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work
}

var _ Group = (*comm.Group)(nil)

// GroupOf is g, if it has what hooks need.
func GroupOf(g any) (Group, error) {
	if c, ok := g.(Group); ok {
		return c, nil
	}
	return nil, fmt.Errorf("compress: the group (%T) lacks AllToAll, which a hook for gradients needs", g)
}

// Memory is arithmetic where gradients lie, enqueued on a stream of their device.
type Memory interface {
	// Convert writes dst = src element by element, rounding to nearest. The two do not
	// overlap.
	Convert(s device.Stream, dst, src tensor.Tensor)
	// Add writes dst += src, where dst is F32 and src F32, BF16 or F16.
	Add(s device.Stream, dst, src tensor.Tensor)
}

// partAlign is what parts are a multiple of, in elements, where nobody else cuts them.
const partAlign = 64

// part is the size of each rank's part of a bucket, in elements. All parts together
// may be longer than the bucket where not every rank gets its own.
func (l Layout) part(b *Bucket) int {
	if l.Scatter {
		return b.Numel / l.Ranks
	}
	return alignUp((b.Numel+l.Ranks-1)/l.Ranks, partAlign)
}

// plain is what a rank sends of b without a hook: as rings and direct exchanges do.
func (l Layout) plain(b *Bucket) int64 {
	n := int64(l.Ranks-1) * int64(b.Numel*b.DType.Size())
	if !l.Scatter {
		n *= 2
	}
	return n / int64(l.Ranks)
}

func alignUp(n, to int) int { return (n + to - 1) / to * to }
