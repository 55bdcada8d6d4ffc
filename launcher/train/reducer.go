package train

import (
	"context"
	"time"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
)

// reducer makes one optimizer step of all ranks' micro-steps, on the compute stream
// beside the communication stream. parallel.strategy says which: replicated is
// plain data parallelism, sharded is ZeRO.
type reducer interface {
	// StepBegin and Finish are around each micro-step; sync is true for a step's last.
	StepBegin(sync bool) error
	Finish(ctx context.Context) error
	// Update enqueues all that comes behind the last Finish: the sums of the losses
	// and of the norm over the ranks, clipping, the optimizer, and what brings the new
	// weights to the model. The rank's loss is complete at the given event. A step whose
	// loss or norm is not finite changes no bit.
	Update(complete device.Event, lr float64) error
	// Waits is what the last step spent on communication. It waits for the step's end.
	Waits(ctx context.Context) (waits, error)
	// Sent is the number of bytes that this rank has sent in steps so far.
	Sent() int64
	// Close frees what the step works on, once no stream is at work on it.
	Close() error
}

// keeper holds the weights and the optimizer's state, and gives a checkpoint what it
// consists of: the same tensors whatever the strategy and the number of ranks.
type keeper interface {
	// About is a line for the user.
	About() string
	// Order names the trainable parameters as their gradients are reduced.
	Order() []string
	// Set gives p its first values. Of those it asks for the elements that this rank
	// keeps, and no others.
	Set(ctx context.Context, p *param.Param, of firstValues) error
	// Publish makes what the model computes with of what Set, or a checkpoint, gave.
	// It comes behind all of them, on every rank.
	Publish() error
	// Compare makes sure that what ranks hold twice is the same.
	Compare(ctx context.Context) error
	// Contents lists all tensors of a checkpoint, and what this rank has of each and
	// writes. They may be read until the next step, behind the work enqueued so far.
	Contents() []file
}

// waits is how long the compute stream stood still for communication in a step.
type waits struct {
	exposed time.Duration // all of it
	// forward and backward are the parts within the passes of all micro-steps. What
	// they leave of exposed is behind the last one.
	forward, backward time.Duration
	buckets           []ddp.BucketStats // the reductions of the last micro-step
}

// spread makes what the configured strategy works on. order is that of gradients in
// a checkpoint; nil is the model's.
func (j *job) spread(ctx context.Context, order []string) (err error) {
	defer func() { err = j.arch.explain(err) }()
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Comm.Timeout)
	defer cancel()
	if stage(j.cfg.Parallel) == 0 {
		return j.replicate(ctx, order)
	}
	return j.shard(ctx, order)
}

// rest waits until neither stream is at work, so that memory can be freed. An error
// of the streams was returned already by who waited for them.
func (j *job) rest() {
	ctx, cancel := context.WithTimeout(context.Background(), j.cfg.Comm.Timeout)
	defer cancel()
	for _, s := range []device.Stream{j.compute, j.comms} {
		_ = s.Synchronize(ctx)
	}
}
