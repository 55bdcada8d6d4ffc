package zero

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Zero is one rank's part of a model's training state, and the traffic that makes
// it whole where it must be. All methods are host calls for one goroutine, the one
// that enqueues the passes.
//
// The first error is final: every later StepBegin, Finish and Gather returns it, and
// the group is aborted with it. The other ranks fail in the same step, or in the
// next one where the fault came behind the step's last collective.
type Zero struct {
	group         Group
	compute, comm device.Stream
	hostComm      device.Stream // for collectives of host memory: comm, or a stream of our own where that is of a GPU
	memory        memory
	own           []device.Buffer // memory of the streams' device, freed by Close
	held          Memory          // what was allocated, by kind
	options       Options
	log           *slog.Logger

	plan    *Plan
	slots   []*slot // of the trainable parameters, in the plan's order
	index   map[*param.Param]*slot
	buckets []*bucket // trainable, in the order of reduction
	frozen  []*bucket
	shards  []Shard
	sharing map[int][]*bucket // stages 1, 2: the trainable buckets with parameters of a block
	rotating
	passing

	// One accumulation window: the micro-steps whose gradients are added up.
	window bool // it has begun
	first  bool // this is its first micro-step
	// One micro-step.
	open, sync bool
	next       int // the bucket that leaves next

	steps         int // micro-steps begun
	sent          Sent
	err           error
	current, last timeline // of the window under way, and of the last that was finished
}

// slot is a parameter's place.
type slot struct {
	*param.Param
	bucket  *bucket
	i       int  // its place in the bucket
	written bool // the gradient holds something: of this window in stage 1, of this micro-step in others
	touched bool // Get was called in this micro-step
	ready   bool // Ready was called in this micro-step
}

// bucket is one message, and what this rank has of it.
type bucket struct {
	Bucket
	weights tensor.Tensor // [Padded] of DType; none in stage 3
	shard   tensor.Tensor // this rank's part of the weights, [Padded/ranks]: in stages 1 and 2 a view of weights
	master  tensor.Tensor // f32 [Padded/ranks]: shard itself where that is f32; none of frozen ones
	grad    tensor.Tensor // this rank's part of the reduced gradients, [Padded/ranks]
	// flat is where the gradients are written, [Padded] of GradDType. In stages 2
	// and 3 it is none but between the first Get of a micro-step and the reduction.
	flat    tensor.Tensor
	buffer  *buffer // that flat lies in, in stages 2 and 3
	own     *buffer // a tied bucket's
	shards  []Shard
	pending int          // parameters that are not Ready yet
	ready   device.Event // on the compute stream, behind the last gradient
	// gathered is on the communication stream, behind the AllGather of weights that
	// the compute stream has not waited for yet. Stages 1 and 2.
	gathered device.Event
}

// New compares the ranks' parameter lists and options, allocates everything but the
// optimizer's moments and returns this rank's Zero. Every rank calls it with the
// same arguments; where they differ, every rank returns the same error, which names
// what differs and on whom. ctx bounds the comparison. Weights are zero: SetWeight
// gives them values.
//
// Both streams must be of one device and should be two different ones: with a
// single stream nothing overlaps. All memory is that device's; a group of more than
// one rank must be able to reduce it. Streams and group stay the caller's to close,
// behind Close, and the group last.
func New(ctx context.Context, g Group, compute, comms device.Stream, params []*param.Param, o Options) (*Zero, error) {
	z, err := prepare(g, compute, comms, params, o)
	if err != nil {
		g.Abort(fmt.Errorf("%s: %w", agree.Who(g, g.Rank()), err)) // the others may be fine, and wait
		return nil, err
	}
	if err := z.compareRanks(ctx, params); err != nil {
		return nil, errors.Join(err, z.Close())
	}
	if err := z.alloc(); err != nil {
		m := z.plan.Memory()
		err = fmt.Errorf("zero: %s: memory for %d bytes of weights, %d of gradients, %d of masters and %d of buffers: %w",
			agree.Who(g, g.Rank()), m.Weights, m.Gradients, m.Masters, m.Buffers, err)
		g.Abort(err)
		return nil, errors.Join(err, z.Close())
	}
	if err := z.openHook(); err != nil {
		g.Abort(err)
		return nil, errors.Join(err, z.Close())
	}
	z.listShards()
	z.log.Info("zero: " + z.plan.String())
	return z, nil
}

// prepare does what needs no other rank.
func prepare(g Group, compute, comms device.Stream, params []*param.Param, o Options) (*Zero, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	plan, err := NewPlan(params, g.Size(), o.PlanOptions)
	if err != nil {
		return nil, err
	}
	z := &Zero{group: g, compute: compute, comm: comms, hostComm: comms, options: o, log: o.Logger, plan: plan,
		index: map[*param.Param]*slot{}, sharing: map[int][]*bucket{}}
	if z.log == nil {
		z.log = slog.New(slog.DiscardHandler)
	}
	for i := range plan.Buckets {
		z.buckets = append(z.buckets, z.newBucket(plan.Buckets[i]))
	}
	for i := range plan.Frozen {
		z.frozen = append(z.frozen, z.newBucket(plan.Frozen[i]))
	}
	if z.memory = o.memory; z.memory == nil {
		if z.memory, err = arrays.Of("zero", compute, comms); err != nil {
			return nil, fmt.Errorf("zero: %w", err)
		}
	}
	if compute.Device().Kind() != device.CPU {
		z.hostComm = device.NewCPUStream("collectives of the host", nil)
	}
	return z, nil
}

func (z *Zero) newBucket(layout Bucket) *bucket {
	b := &bucket{Bucket: layout}
	for i, p := range b.Params {
		s := &slot{Param: p, bucket: b, i: i}
		z.index[p] = s
		if p.Frozen {
			continue
		}
		z.slots = append(z.slots, s)
		if list := z.sharing[p.Block]; len(list) == 0 || list[len(list)-1] != b {
			z.sharing[p.Block] = append(list, b)
		}
	}
	return b
}

// Close frees what New has made; only what came from the group stays until the
// group is closed. No stream may still be at work on it. Nothing else may be called
// afterwards; a second Close does nothing.
func (z *Zero) Close() error {
	var errs []error
	for _, b := range z.own {
		errs = append(errs, z.compute.Device().Free(b))
	}
	z.own = nil
	if z.memory != nil {
		errs = append(errs, z.memory.Close())
		z.memory = nil
	}
	if z.hostComm != z.comm {
		// Its error, if any, is that of a collective whose caller has waited and got it.
		z.hostComm.Close()
	}
	return errors.Join(errs...)
}

// Plan is what lies where.
func (z *Zero) Plan() *Plan { return z.plan }

// Err is the first error, nil while there is none. Errors of collectives are
// those of the streams.
func (z *Zero) Err() error { return z.err }

// fail keeps the first error, says whose it is, and ends the group, so that the
// other ranks learn of it instead of waiting.
func (z *Zero) fail(err error) error {
	if z.err == nil {
		z.err = fmt.Errorf("zero: %s: micro-step %d: %w", agree.Who(z.group, z.group.Rank()), z.steps, err)
		z.open = false
		z.group.Abort(z.err)
	}
	return z.err
}
