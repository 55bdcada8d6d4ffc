package ddp

import (
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Options of a DDP. They must be the same on every rank, Logger and Reduced
// excepted; New compares them (of buffers name, type and shape).
type Options struct {
	PlanOptions
	// Op is comm.Sum (default) or comm.Avg, which divides by the number of
	// ranks, once. Whoever scales the loss decides.
	Op comm.Op
	// ReduceDType is the type in which gradients travel and are added up;
	// default: the gradient's own. Where it differs, each bucket is converted
	// into a second buffer and back, on the communication stream.
	ReduceDType dtype.DType
	// Compress reduces the buckets in the group's place, such as a *compress.Compressor
	// does; default: AllReduce. It serves this DDP alone. A window whose step is skipped
	// is to be taken back by its Discard. What travels beside the buckets, such as Rows,
	// is left as it is, and so is a group of one rank.
	Compress compress.Hook
	// NoOverlap keeps all buckets back until the backward pass is done, to
	// measure what overlap gains. The result is the same.
	NoOverlap bool
	// FindUnused allows a micro-step to leave gradients out. A rank that has
	// none contributes zeros; a gradient that no rank has is reported as absent
	// by Grad. It costs a small reduction, in host memory, and a wait of the host
	// for the others' each step, and buckets with unused parameters leave at the
	// end of the backward pass.
	// Without it every parameter must be Ready in every micro-step.
	FindUnused bool
	// StaticGraph promises that all micro-steps use the same parameters as the
	// rank's first one, and holds the model to it. It makes FindUnused as cheap
	// as if nothing were unused, and allows the rebuild. Without FindUnused all
	// parameters are used, and there is nothing to promise.
	StaticGraph bool
	// Reduced is called by a synced Finish with each bucket in turn, and its place in
	// the order. Work that it enqueues on the compute stream sees the bucket reduced,
	// and need not wait for the later ones: the norm of the gradients, for instance.
	// It must not depend on FindUnused's answer, which comes behind.
	Reduced func(i int, b Bucket)
	// Rows promises that in every micro-step all ranks offer equally many rows of the
	// same parameter, if any (param.RowSink), and lets them travel apart.
	Rows bool
	// Buffers are the model's state beside its parameters. Each window begins
	// with a copy of rank 0's to all ranks, see BroadcastBuffers.
	Buffers []Buffer
	// Logger is told of the plan and of its rebuild; default: nobody.
	Logger *slog.Logger

	memory memory // tests bring their own
}

func (o Options) check() error {
	if o.Op != comm.Sum && o.Op != comm.Avg {
		return fmt.Errorf("ddp: Op is %s: gradients can be reduced by sum or avg", o.Op)
	}
	if o.ReduceDType != dtype.Invalid && !o.ReduceDType.Float() {
		return fmt.Errorf("ddp: ReduceDType is %s: gradients need a floating-point type", o.ReduceDType)
	}
	if o.Compress != nil && o.ReduceDType != dtype.Invalid {
		return fmt.Errorf("ddp: ReduceDType is %s beside Compress, %s, which decides what travels: leave one of them out", o.ReduceDType, o.Compress)
	}
	if o.Compress != nil && o.FindUnused && !o.StaticGraph {
		return fmt.Errorf("ddp: FindUnused beside Compress, %s: a parameter that no rank uses in a step would lose what earlier ones have left of it; set StaticGraph, or leave one of them out", o.Compress)
	}
	return nil
}
