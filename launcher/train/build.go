package train

import (
	"fmt"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// build makes the model, and what steps read and write beside weights and gradients.
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
	if j.arch.classifier != nil {
		err = j.buildClassifier()
	} else {
		j.model, err = j.arch.build(j.env)
	}
	if err != nil {
		return err
	}
	if j.gpuOps != nil { // so that the first step does not compile, or fail
		s := j.arch.shape
		if err := j.gpuOps.Prepare(j.env.B, j.env.T, s.Heads, s.KVHeads, s.HeadDim, packs(c), true); err != nil {
			return fmt.Errorf("model.attention %s: %w", c.Model.Attention, err)
		}
	}
	for range c.Train.GradAccum {
		f, err := newFeed(dev, j.env.B, j.env.T, packs(c))
		if err != nil {
			return err
		}
		j.feeds = append(j.feeds, f)
	}
	if j.scalars, err = newScalars(dev); err != nil {
		return err
	}
	j.optim = &optimizer{c: c.Train}
	for t, n := range map[*tensor.Tensor]int{&j.sums: 8, &j.maxima: 16} {
		if *t, err = tensor.Alloc(device.NewCPU(), dtype.F64, n); err != nil {
			return err
		}
	}
	return nil
}

// mebibytes is a key's MiB in bytes.
func mebibytes(n float64) int { return int(n * (1 << 20)) }

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
