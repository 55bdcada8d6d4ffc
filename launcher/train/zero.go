package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/zero"
)

// sharded is ZeRO: each rank holds its shards of the masters and moments, and from
// stage 2 on of the gradients, in stage 3 of the weights. shards.go is a checkpoint's
// view of it.
type sharded struct {
	*zero.Zero
	j     *job
	slots []adamw.Slot // of Shards, in their order
	// holdings says which piece of a parameter this rank has, and where in slots.
	holdings map[*param.Param]holding

	sync    bool
	forward []wait // of the step, in the forward passes
	behind  []wait // behind the last backward pass
	sent    int64
}

// wait is a place on the compute stream where it may stand still.
type wait struct{ before, after device.Event }

var (
	_ reducer = (*sharded)(nil)
	_ keeper  = (*sharded)(nil)
)

// stage is that of ZeRO; 0 is plain data parallelism.
func stage(p config.Parallel) int {
	return map[string]int{"zero1": 1, "zero2": 2, "zero3": 3}[p.Strategy]
}

// shardOptions decide where everything lies.
func (a *architecture) shardOptions(order []string) zero.PlanOptions {
	c := a.cfg
	o := zero.PlanOptions{
		Stage: stage(c.Parallel), BucketCap: mebibytes(c.Parallel.BucketCapMB), FirstBucket: mebibytes(c.Parallel.FirstBucketMB),
		GradDType: gradType(c, a.on), ReduceDType: typeNamed(c.Parallel.ReduceDType), Order: order,
		Compress: a.compression.hook(),
	}
	if o.Stage > 1 && typeNamed(c.Parallel.GradDType) == dtype.Invalid {
		// Each micro-step's are added to a shard in f32, whatever they travel in.
		o.GradDType = computeType(a.on)
	}
	for _, p := range a.params {
		if a.shape.Tied && len(o.Tied) == 0 && slices.Equal(p.Shape, []int{a.shape.Vocab, a.shape.Hidden}) {
			o.Tied = []string{p.Name} // the embedding, which comes first
		}
	}
	return o
}

// shard makes this rank's part of the training state.
func (j *job) shard(ctx context.Context, order []string) error {
	z, err := zero.New(ctx, j.group, j.compute, j.comms, j.model.Params(), zero.Options{
		PlanOptions: j.arch.shardOptions(order), NoOverlap: !j.cfg.Comm.Overlap, Masters: j.states(),
	})
	if err != nil {
		return err
	}
	s := &sharded{Zero: z, j: j, holdings: holdingsOf(z.Plan(), j.rank())}
	j.onClose(s.Close)
	shards := z.Shards()
	shapes := make([][]int, len(shards))
	for i, x := range shards {
		shapes[i] = []int{x.To - x.From}
	}
	s.slots = make([]adamw.Slot, len(shards))
	if len(shards) > 0 {
		m, err := tensor.Pack(j.states(), dtype.F32, shapes)
		if err != nil {
			return fmt.Errorf("first moments: %w", err)
		}
		v, err := tensor.Pack(j.states(), dtype.F32, shapes)
		if err != nil {
			return fmt.Errorf("second moments: %w", err)
		}
		for i, x := range shards {
			s.slots[i] = adamw.Slot{W: x.Master, M: m[i], V: v[i], G: x.Grad, Decay: x.Decay}
			h := s.holdings[x.Param]
			h.slot = i
			s.holdings[x.Param] = h
		}
	}
	j.weights, j.forward, j.sink, j.reducer, j.keeper = z, forwardWeights{z, s}, z, s, s
	return nil
}

// forwardWeights are those of a training step's forward pass, where the waits for
// weights are told apart from those of the backward pass.
type forwardWeights struct {
	*zero.Zero
	s *sharded
}

func (f forwardWeights) Use(block int) {
	f.s.forward = append(f.s.forward, f.s.timed(func() { f.Zero.Use(block) }))
}

// timed is the wait that f makes the compute stream do.
func (s *sharded) timed(f func()) wait {
	before := s.j.compute.Record()
	f()
	return wait{before, s.j.compute.Record()}
}

func (s *sharded) StepBegin(sync bool) error {
	s.sync = sync
	return s.Zero.StepBegin(sync)
}

func (s *sharded) Finish(ctx context.Context) (err error) {
	if !s.sync {
		return s.Zero.Finish(ctx)
	}
	s.behind = append(s.behind, s.timed(func() { err = s.Zero.Finish(ctx) }))
	return err
}

// Update sums the squares of what this rank holds: over all ranks that is each
// gradient once. The loss, which is complete on the compute stream, travels with them.
func (s *sharded) Update(_ device.Event, lr float64) error {
	x, ops, compute := s.j.scalars, s.j.ops, s.j.compute
	ops.Zero(compute, x.norm2)
	for _, t := range s.slots {
		ops.SumSquares(compute, x.norm2, t.G, true)
	}
	s.behind = append(s.behind, s.timed(func() { s.AllReduce(x.sums) }))
	s.j.optim.step(compute, ops, s.slots, x, lr)
	return s.Gather()
}

func (s *sharded) Waits(ctx context.Context) (w waits, err error) {
	stats, err := s.Stats(ctx)
	if err != nil {
		return w, err
	}
	s.sent += stats.Sent.Total()
	var errs []error
	sum := func(list []wait) (d time.Duration) {
		for _, x := range list {
			took, err := x.after.Since(x.before)
			errs = append(errs, err)
			d += took
			device.Release(x.before, x.after)
		}
		return d
	}
	w.forward = sum(s.forward)
	behind := sum(s.behind)
	// The two are measured from a little before the waits to a little behind them.
	w.backward = max(stats.Exposed-w.forward-behind, 0)
	w.exposed = w.forward + w.backward + behind
	s.forward, s.behind = s.forward[:0], s.behind[:0]
	for _, b := range stats.Buckets {
		w.buckets = append(w.buckets, ddp.BucketStats(b))
	}
	return w, errors.Join(errs...)
}

// Sent is of gradients and weights, padding included.
func (s *sharded) Sent() int64 { return s.sent }

// Close frees weights and gradients.
func (s *sharded) Close() error {
	s.j.rest()
	return s.Zero.Close()
}

func (s *sharded) About() string {
	p := s.Plan()
	return fmt.Sprintf("ZeRO stage %d: %s of weights, gradients and the optimizer's state on each rank, %s sent a step",
		p.Stage, byteCount(p.Memory().Total()), byteCount(p.Sent(s.j.cfg.Train.GradAccum).Total()))
}

// Order is the plan's.
func (s *sharded) Order() []string { return s.Plan().Order() }

// Set asks for this rank's shard of p. Frozen weights are on each rank before stage 3.
func (s *sharded) Set(ctx context.Context, p *param.Param, of firstValues) error {
	held := s.Held(p)
	want := elements{held.From, held.To}
	if p.Frozen && s.Plan().Stage < 3 {
		want = elements{0, p.Numel()}
	}
	if want.numel() == 0 {
		return nil
	}
	values, err := of(want)
	if err != nil {
		return err
	}
	return s.SetWeight(ctx, p, want.from, values)
}

func (s *sharded) Publish() error { return s.Gather() }

// Compare has nothing to do: a master is on one rank alone, and every step makes the
// weights of all ranks of it anew.
func (s *sharded) Compare(context.Context) error { return nil }
