package zero

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

const (
	// DefaultBucketCap and DefaultFirstBucket are the limits that zero stands
	// for. A small first bucket lets communication start early.
	DefaultBucketCap   = 25 << 20
	DefaultFirstBucket = 1 << 20

	// align is where parameters and shards begin, in elements: at multiples of 256
	// bytes in the narrowest type, as memory of a GPU itself does. Weights, gradients
	// and masters have one layout, whatever their types.
	align = 128
)

// Plan says what lies where: parameters one after another in buckets, each cut into
// equal shards, one for each rank, whatever parameters the cuts go through. It is
// a pure function of the parameter list, the number of ranks and PlanOptions, so
// ranks that agree on those agree on every message.
type Plan struct {
	Stage, Ranks int
	// Buckets hold the trainable parameters, in the order in which their gradients
	// are reduced.
	Buckets []Bucket
	// Frozen holds the frozen parameters, which have neither gradients nor masters.
	// Only stage 3 shards them.
	Frozen []Bucket

	reduce dtype.DType   // PlanOptions.ReduceDType
	hook   compress.Hook // PlanOptions.Compress; nil at one rank
}

// Bucket is the layout of one message: parameters of one type, one after the
// other, each beginning at a multiple of 128 elements.
type Bucket struct {
	DType     dtype.DType // of the weights
	GradDType dtype.DType
	// Block is the one block whose parameters these are, in stage 3; -1 in others,
	// where buckets hold parameters of any blocks.
	Block   int
	Params  []*param.Param
	Offsets []int // of each parameter, in elements from the bucket's start
	// Numel counts the parameters' elements alone.
	Numel int
	// Padded is the bucket's size in elements: a multiple of 128 for each rank. What
	// lies between the parameters is never read.
	Padded int
	// Tied buckets hold a parameter of PlanOptions.Tied.
	Tied bool
}

// Range is elements [From, To) of a parameter.
type Range struct {
	Param    *param.Param
	From, To int
}

// NewPlan lays out params for a number of ranks.
//
// It goes through the trainable ones in order and appends each to the open bucket of
// its type, and in stage 3 of its block. A bucket is closed as soon as its size reaches
// the limit, so one may be larger, as a parameter is never split between two.
// Buckets are reduced in the order in which they are expected to be complete, whatever
// their type. Frozen parameters follow in buckets of their own.
//
// It fails when an option is out of range, names are not unique, no parameter is
// trainable, a type is neither F32 nor BF16 nor F16, Order is not a permutation of
// the trainable parameters, or Tied names what is no parameter.
func NewPlan(params []*param.Param, ranks int, o PlanOptions) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if ranks < 1 {
		return nil, fmt.Errorf("zero: a plan for %d ranks: want at least one", ranks)
	}
	order, err := param.Expected("zero", params, o.Order)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var frozen []*param.Param
	for _, p := range slices.Backward(params) {
		known[p.Name] = true
		if !short(p.DType) {
			return nil, fmt.Errorf("zero: parameter %s is %s: weights can be f32, bf16 or f16, as masters are f32", p.Name, p.DType)
		}
		if p.Frozen {
			frozen = append(frozen, p)
		}
	}
	for _, name := range o.Tied {
		if !known[name] {
			return nil, fmt.Errorf("zero: Tied names %s, which the model does not have", name)
		}
	}
	plan := &Plan{Stage: o.Stage, Ranks: ranks, reduce: o.ReduceDType,
		Buckets: fill(order, ranks, o), Frozen: fill(frozen, ranks, o)}
	if ranks > 1 {
		plan.hook = o.Compress
	}
	return plan, nil
}

// fill packs params into buckets.
func fill(params []*param.Param, ranks int, o PlanOptions) (list []Bucket) {
	type kind struct {
		dt    dtype.DType
		block int
	}
	open, closed := map[kind]*Bucket{}, map[dtype.DType]bool{} // closed: types whose first bucket is
	var buckets []*Bucket
	last := map[*Bucket]int{} // place of a bucket's last parameter in order
	for at, p := range params {
		k := kind{p.DType, -1}
		if o.Stage == 3 {
			k.block = p.Block
		}
		b := open[k]
		if b == nil {
			b = &Bucket{DType: p.DType, GradDType: p.DType, Block: k.block}
			if o.GradDType != dtype.Invalid {
				b.GradDType = o.GradDType
			}
			open[k], buckets = b, append(buckets, b)
		}
		b.Params, b.Offsets = append(b.Params, p), append(b.Offsets, b.Padded)
		b.Numel += p.Numel()
		b.Padded += alignUp(p.Numel(), align)
		b.Tied = b.Tied || !p.Frozen && slices.Contains(o.Tied, p.Name)
		last[b] = at
		limit := cmp.Or(o.BucketCap, DefaultBucketCap)
		if !closed[p.DType] {
			limit = cmp.Or(o.FirstBucket, DefaultFirstBucket)
		}
		if b.Numel*b.GradDType.Size() >= limit {
			open[k], closed[p.DType] = nil, true
		}
	}
	slices.SortFunc(buckets, func(a, b *Bucket) int { return last[a] - last[b] })
	for _, b := range buckets {
		b.Padded = alignUp(b.Padded, align*ranks)
		list = append(list, *b)
	}
	return list
}

// shard is the size of each rank's part, in elements.
func (b *Bucket) shard(ranks int) int { return b.Padded / ranks }

// held is the range of parameter i in rank's part, with from == to where there is
// none of it; at is its place in the part.
func (b *Bucket) held(i, rank, ranks int) (from, to, at int) {
	size := b.shard(ranks)
	n, start := b.Params[i].Numel(), rank*size-b.Offsets[i] // the part begins at this element
	from, to = min(max(start, 0), n), max(min(start+size, n), 0)
	return from, to, from - start
}

// Ranges lists what each rank holds of the parameters, frozen ones included, bucket
// by bucket. Over all ranks they cover each element once: the pieces of a
// checkpoint. Empty ranges are left out.
func (p *Plan) Ranges(rank int) (list []Range) {
	for _, b := range slices.Concat(p.Buckets, p.Frozen) {
		for i, q := range b.Params {
			if from, to, _ := b.held(i, rank, p.Ranks); from < to {
				list = append(list, Range{q, from, to})
			}
		}
	}
	return list
}

// Order names the trainable parameters in the order in which the plan expects them,
// bucket by bucket. As PlanOptions.Order it gives the same buckets again.
func (p *Plan) Order() []string {
	var names []string
	for _, b := range p.Buckets {
		for _, q := range b.Params {
			names = append(names, q.Name)
		}
	}
	return names
}

func alignUp(n, to int) int { return (n + to - 1) / to * to }
