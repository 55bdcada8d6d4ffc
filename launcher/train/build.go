package train

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// build makes the model, its weights and the optimizer, and what steps write to.
func (j *job) build() (err error) {
	c, dev := j.cfg, j.device
	defer func() { err = j.arch.explain(err) }()
	j.env = models.Env{
		Device: dev, Stream: j.compute, Ops: j.ops, B: c.Train.MicroBatch, T: c.Data.SeqLen, Recompute: recompute(c.Train),
	}
	if j.cfg.Log.Trace > 0 && j.gpu != nil {
		j.gpuTrace = traceOps(j.ops, j.tracer)
		j.ops, j.env.Ops = j.gpuTrace, j.gpuTrace
	}
	if j.model, err = j.arch.build(j.env); err != nil {
		return err
	}
	if j.gpuOps != nil { // so that the first step does not compile, or fail
		s := j.arch.shape
		if err := j.gpuOps.Prepare(j.env.B, j.env.T, s.Heads, s.KVHeads, s.HeadDim, false, true); err != nil {
			return fmt.Errorf("model.attention %s: %w", c.Model.Attention, err)
		}
	}
	if j.weights, err = param.NewReplica(dev, j.model.Params()); err != nil {
		return err
	}
	if j.optim, err = newOptimizer(dev, c.Train, j.model.Params(), j.weights); err != nil {
		return err
	}
	for range c.Train.GradAccum {
		f, err := newFeed(dev, j.env.B, j.env.T)
		if err != nil {
			return err
		}
		j.feeds = append(j.feeds, f)
	}
	if j.scalars, err = newScalars(dev); err != nil {
		return err
	}
	for t, n := range map[*tensor.Tensor]int{&j.sums: 8, &j.maxima: 16} {
		if *t, err = tensor.Alloc(device.NewCPU(), dtype.F64, n); err != nil {
			return err
		}
	}
	return nil
}

// wrap makes the gradient buckets, in the order that a checkpoint recorded, or
// in the model's.
func (j *job) wrap(ctx context.Context, order []string) (err error) {
	p, c := j.cfg.Parallel, j.cfg.Comm
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	j.sink, err = ddp.New(ctx, j.group, j.compute, j.comms, j.model.Params(), ddp.Options{
		PlanOptions: bucketOptions(j.cfg, j.arch.on, order), NoOverlap: !c.Overlap, FindUnused: p.FindUnusedParameters, StaticGraph: p.StaticGraph,
		ReduceDType: typeNamed(p.ReduceDType), Reduced: j.addNorm, Rows: true,
	})
	if err == nil {
		j.onClose(j.closeSink)
	}
	return err
}

// addNorm adds a bucket to the square of the gradients' norm, while later ones may
// still be on their way.
func (j *job) addNorm(i int, b ddp.Bucket) {
	j.ops.SumSquares(j.compute, j.scalars.norm2, b.Flat, i > 0)
}

// closeSink frees the gradients once no stream is at work on them. An error of the
// streams was returned already by who waited for them.
func (j *job) closeSink() error {
	ctx, cancel := context.WithTimeout(context.Background(), j.cfg.Comm.Timeout)
	defer cancel()
	for _, s := range []device.Stream{j.compute, j.comms} {
		_ = s.Synchronize(ctx)
	}
	return j.sink.Close()
}

func bucketOptions(c *config.Config, on device.Kind, order []string) ddp.PlanOptions {
	const mib = 1 << 20
	return ddp.PlanOptions{
		BucketCap: int(c.Parallel.BucketCapMB * mib), FirstBucket: int(c.Parallel.FirstBucketMB * mib), Order: order,
		GradDType: gradType(c, on),
	}
}

// gradType is the type of gradients. Those of one micro-step are used in the type
// in which they were computed; those of several are added up in f32.
func gradType(c *config.Config, on device.Kind) dtype.DType {
	if dt := typeNamed(c.Parallel.GradDType); dt != dtype.Invalid {
		return dt
	}
	if c.Train.GradAccum > 1 {
		return dtype.F32
	}
	return computeType(on)
}

// typeNamed is the type that a key names; auto is none.
func typeNamed(name string) dtype.DType {
	return map[string]dtype.DType{"fp32": dtype.F32, "bf16": dtype.BF16}[name]
}

func recompute(c config.Train) models.Recompute {
	return map[string]models.Recompute{"norms": models.RecomputeNorms, "block": models.RecomputeBlocks}[c.Recompute]
}
