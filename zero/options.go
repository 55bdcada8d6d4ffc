package zero

import (
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// PlanOptions is the part of Options that decides where everything lies.
type PlanOptions struct {
	// Stage is 1 (masters and moments are sharded), 2 (gradients too) or 3
	// (weights too). There is no default.
	Stage int
	// BucketCap is the size in bytes of gradients at which a bucket is closed; default
	// 25 MiB.
	BucketCap int
	// FirstBucket is the same for the first bucket of each type; default 1 MiB.
	FirstBucket int
	// GradDType is the type in which the model writes gradients: F32, BF16 or F16;
	// default: each in its parameter's type.
	GradDType dtype.DType
	// ReduceDType is the type in which gradients travel and are added up; default:
	// the type in which they were written. Where it differs, each bucket is
	// converted into another buffer, on the communication stream.
	ReduceDType dtype.DType
	// Compress reduces the buckets in the group's place, such as a *compress.Compressor
	// does; default: ReduceScatter. It serves this Zero alone. A window whose step is
	// skipped is to be taken back by its Discard. Weights are gathered as ever, and a
	// group of one rank does without it.
	Compress compress.Hook
	// Order names the trainable parameters in the order in which their gradients
	// are expected. Default: the reverse of the parameter list.
	Order []string
	// Tied names the parameters whose gradients have writers far apart in a backward
	// pass, such as an embedding that is the head too, or a module that is used
	// twice. In stages 2 and 3 the bucket of each has memory of its own, while the
	// others take turns. One that is left out is found when it is written, and gets its
	// memory then: unplanned, and in the midst of a step. Frozen ones may be named.
	Tied []string
}

// Options of a Zero. They must be the same on every rank, Logger, Masters and
// Reduced excepted; New compares them.
type Options struct {
	PlanOptions
	// Op is comm.Sum (default) or comm.Avg, which divides by the number of ranks,
	// once. Whoever scales the loss decides.
	Op comm.Op
	// NoOverlap makes the compute stream wait for each collective where it is
	// enqueued, to measure what overlap gains. The result is the same.
	NoOverlap bool
	// Reduced is called by a synced Finish with each bucket's place in the order and
	// this rank's shards of it, which may be none. Work that it enqueues on the
	// compute stream sees the bucket reduced, and need not wait for the later ones:
	// the norm of the gradients, for instance.
	Reduced func(bucket int, shards []Shard)
	// Masters gives the memory of the masters of weights that are not f32; default: the
	// streams' device. (*cuda.Device).Mapped keeps them in the host's memory, where the
	// GPU's kernels reach them over the bus.
	Masters device.Allocator
	// Logger is told of the plan and of further buffers; default: nobody.
	Logger *slog.Logger

	memory memory // tests bring their own
}

func (o PlanOptions) check() error {
	if o.Stage < 1 || o.Stage > 3 {
		return fmt.Errorf("zero: Stage is %d: want 1, 2 or 3", o.Stage)
	}
	if o.BucketCap < 0 || o.FirstBucket < 0 {
		return fmt.Errorf("zero: BucketCap %d and FirstBucket %d must not be negative", o.BucketCap, o.FirstBucket)
	}
	for what, dt := range map[string]dtype.DType{"GradDType": o.GradDType, "ReduceDType": o.ReduceDType} {
		if dt != dtype.Invalid && !short(dt) {
			return fmt.Errorf("zero: %s is %s: gradients can be f32, bf16 or f16", what, dt)
		}
	}
	if o.Compress != nil && o.ReduceDType != dtype.Invalid {
		return fmt.Errorf("zero: ReduceDType is %s beside Compress, %s, which decides what travels: leave one of them out", o.ReduceDType, o.Compress)
	}
	return nil
}

func (o Options) check() error {
	if o.Op != comm.Sum && o.Op != comm.Avg {
		return fmt.Errorf("zero: Op is %s: gradients can be reduced by sum or avg", o.Op)
	}
	return nil
}

// short are the types of weights and gradients: those that an f32 holds exactly.
func short(dt dtype.DType) bool { return dt == dtype.F32 || dt == dtype.BF16 || dt == dtype.F16 }
