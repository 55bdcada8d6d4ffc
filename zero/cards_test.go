package zero

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/arith"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// cardModel is what the tests on GPUs shard: odd sizes, buckets small enough for NCCL
// and large enough for the copy engines, and shards that cut through parameters.
func cardModel() []*param.Param {
	var list []*param.Param
	for i, n := range []int{700_001, 12, 3, 1_300_000, 1, 900_007} {
		list = append(list, &param.Param{Name: fmt.Sprint("p", i), Shape: []int{n}, DType: dtype.BF16, Block: i / 2})
	}
	return list
}

// cardGrad is rank's gradient of element e of parameter i in a micro-step: small
// integers, whose sums are exact in bf16.
func cardGrad(rank, i, micro, e int) float32 { return float32((e+3*i+5*rank+7*micro)%13 - 6) }

// card is one rank's part of a test on a GPU.
type card struct {
	ctx           context.Context
	g             *comm.Group
	dev           *cuda.Device
	compute, comm device.Stream
	arith         *arith.Arith
	params        []*param.Param
	grads         map[[2]int]tensor.Tensor // by parameter and micro-step, f32
	own           []device.Buffer
}

// On real GPUs each stage reduces micro-steps to exact sums, in whatever type the
// gradients are written and, compressed to 16 bits, travel, and hands weights that follow
// their masters to all ranks, with masters on the GPU and in the host's memory.
func TestCUDAStages(t *testing.T) {
	const n = 2
	have, err := cuda.Count()
	if err != nil {
		testenv.Skip(t, "gpu", err.Error())
	}
	if have < n {
		testenv.Skip(t, fmt.Sprintf("gpu:%d", n), fmt.Sprintf("this host has %d", have))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	devices, options := make([]device.Device, n), make([]comm.Options, n)
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		devices[i] = d
		options[i] = comm.Options{Device: d, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	}
	groups := commtest.Groups(t, n, options...)
	t.Log(groups[0].GPUEngine())
	commtest.RunOn(t, groups, devices, func(g *comm.Group, s device.Stream) error {
		c := &card{ctx: ctx, g: g, dev: devices[g.Rank()].(*cuda.Device), compute: s, params: cardModel(), grads: map[[2]int]tensor.Tensor{}}
		var err error
		if c.comm, err = c.dev.NewStream("comm"); err != nil {
			return err
		}
		if c.arith, err = arith.New(c.dev); err != nil {
			return errors.Join(err, c.comm.Close())
		}
		for stage := 1; stage <= 3; stage++ {
			for _, dt := range []dtype.DType{dtype.BF16, dtype.F32} {
				for _, x := range []struct {
					mapped   bool
					compress compress.Scheme
				}{{}, {mapped: true}, {compress: compress.BF16}, {compress: compress.FP16}} {
					o := Options{PlanOptions: PlanOptions{Stage: stage, GradDType: dt, FirstBucket: 64 << 10, BucketCap: 4 << 20}}
					if x.mapped {
						o.Masters = c.dev.Mapped()
					}
					if x.compress != "" {
						hook, err := compress.New(compress.Options{Scheme: x.compress})
						if err != nil {
							return err
						}
						o.Compress = hook
					}
					if err := c.train(o); err != nil {
						return fmt.Errorf("stage %d, gradients in %s, %+v: %w", stage, dt, x, err)
					}
				}
			}
		}
		errs := []error{c.arith.Close(), c.comm.Close()}
		for _, b := range c.own {
			errs = append(errs, c.dev.Free(b))
		}
		return errors.Join(errs...)
	})
	if err := commtest.Close(groups); err != nil {
		t.Error(err)
	}
}

// train makes two steps of three micro-steps each, whose optimizer adds the gradient to
// the masters.
func (c *card) train(o Options) error {
	z, err := New(c.ctx, c.g, c.compute, c.comm, c.params, o)
	if err != nil {
		return err
	}
	const steps, micros = 2, 3
	weight := func(i, e, step int) float32 {
		w := float32((e+i)%64) / 64
		for range step {
			for m := range micros {
				for r := range c.g.Size() {
					w += cardGrad(r, i, m, e)
				}
			}
		}
		return w
	}
	for i, p := range c.params {
		if err := z.SetWeight(c.ctx, p, 0, valuesOf(p.Numel(), func(e int) float32 { return weight(i, e, 0) })); err != nil {
			return err
		}
	}
	if err := z.Gather(); err != nil {
		return err
	}
	for step := range steps {
		if err := c.weightsAre(z, func(i, e int) float32 { return weight(i, e, step) }); err != nil {
			return fmt.Errorf("before step %d: %w", step, err)
		}
		for m := range micros {
			if err := c.micro(z, m, m == micros-1); err != nil {
				return fmt.Errorf("step %d, micro-step %d: %w", step, m, err)
			}
		}
		for _, s := range z.Shards() {
			if err := c.gradientIs(s, micros); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			c.arith.Add(c.compute, s.Master, s.Grad)
		}
		if err := z.Gather(); err != nil {
			return err
		}
	}
	if err := c.weightsAre(z, func(i, e int) float32 { return weight(i, e, steps) }); err != nil {
		return fmt.Errorf("in the end: %w", err)
	}
	if err := errors.Join(c.compute.Synchronize(c.ctx), c.comm.Synchronize(c.ctx)); err != nil {
		return err
	}
	return z.Close()
}

func valuesOf(n int, at func(e int) float32) []float32 {
	v := make([]float32, n)
	for e := range v {
		v[e] = at(e)
	}
	return v
}

// micro is a forward pass that uses each block, and a backward pass.
func (c *card) micro(z *Zero, m int, sync bool) error {
	if err := z.StepBegin(sync); err != nil {
		return err
	}
	const blocks = 3
	for b := range blocks {
		z.Use(b)
		z.Done(b)
	}
	for b := blocks - 1; b >= 0; b-- {
		z.Use(b)
		for i := len(c.params) - 1; i >= 0; i-- {
			if c.params[i].Block != b {
				continue
			}
			value, err := c.grad(i, m)
			if err != nil {
				return err
			}
			grad, add := z.Get(c.params[i])
			if add {
				c.arith.Add(c.compute, grad, value)
			} else {
				c.arith.Convert(c.compute, grad, value)
			}
			z.Ready(c.params[i])
		}
		z.Done(b)
	}
	return z.Finish(c.ctx)
}

// grad is this rank's gradient on the device.
func (c *card) grad(i, m int) (tensor.Tensor, error) {
	key := [2]int{i, m}
	if x, ok := c.grads[key]; ok {
		return x, nil
	}
	x, err := tensor.Alloc(c.dev, dtype.F32, c.params[i].Shape...)
	if err != nil {
		return x, err
	}
	c.own = append(c.own, x.Buf)
	c.grads[key] = x
	c.compute.Copy(x.Buf, device.Of(valuesOf(x.Numel(), func(e int) float32 { return cardGrad(c.g.Rank(), i, m, e) })))
	return x, c.compute.Synchronize(c.ctx)
}

// gradientIs compares a shard's gradient with the sum over ranks and micro-steps.
func (c *card) gradientIs(s Shard, micros int) error {
	var i int
	fmt.Sscanf(s.Param.Name, "p%d", &i)
	return c.are("the gradient of "+s.Param.Name, s.Grad, func(e int) float32 {
		var sum float32
		for m := range micros {
			for r := range c.g.Size() {
				sum += cardGrad(r, i, m, s.From+e)
			}
		}
		return sum
	})
}

// weightsAre compares every weight that a pass sees with a value, rounded to bf16.
func (c *card) weightsAre(z *Zero, want func(i, e int) float32) error {
	for b := range 3 {
		z.Use(b)
		for i, p := range c.params {
			if p.Block != b {
				continue
			}
			if err := c.are("the weight "+p.Name, z.Weight(p), func(e int) float32 { return dtype.BF16To(dtype.BF16From(want(i, e))) }); err != nil {
				return err
			}
		}
		z.Done(b)
	}
	return nil
}

func (c *card) are(what string, t tensor.Tensor, want func(e int) float32) error {
	host := tensor.New(device.Host(make([]byte, t.Buf.Len())), t.DType, t.Shape...)
	c.compute.Copy(host.Buf, t.Buf)
	if err := c.compute.Synchronize(c.ctx); err != nil {
		return err
	}
	load := loader(host)
	for e := range t.Numel() {
		if got := load(e); got != float64(want(e)) {
			return fmt.Errorf("rank %d: %s: element %d of %s is %v, want %v", c.g.Rank(), what, e, t, got, want(e))
		}
	}
	return nil
}
