package zero

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// copies is memory of a device whose kernels compute nothing, for arrays of one type.
type copies struct{ t *testing.T }

func (m copies) Convert(s device.Stream, dst, src tensor.Tensor) {
	if dst.DType != src.DType {
		m.t.Errorf("%s of %s", dst, src)
	}
	s.Copy(dst.Buf, src.Buf)
}

func (m copies) Add(device.Stream, tensor.Tensor, tensor.Tensor) { m.t.Error("a sum of two arrays") }

func (m copies) Close() error { return nil }

// Memory of GPUs goes through NCCL, as NCCL wants to be called: the fake one counts
// every other call. Gradients come to their shards as the sum over the ranks, and what
// the optimizer writes there comes to every rank, in each stage.
func TestStepsOverNCCL(t *testing.T) {
	const ranks = 3
	for stage := 1; stage <= 3; stage++ {
		t.Run(fmt.Sprint("stage=", stage), func(t *testing.T) {
			driver := cudatest.FakeOf(t, cudatest.Machine{GPUs: ranks})
			nccltest.Fake(t, driver)
			var devices []device.Device
			options := make([]comm.Options, ranks)
			for i := range options {
				d, err := cuda.Open(i)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
				devices = append(devices, d)
				options[i] = comm.Options{Device: d, Engine: "nccl", Timeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler)}
			}
			groups := commtest.Groups(t, ranks, options...)
			commtest.RunOn(t, groups, devices, func(g *comm.Group, compute device.Stream) error {
				return stepOverNCCL(t, g, compute, stage)
			})
		})
	}
}

func stepOverNCCL(t *testing.T, g *comm.Group, compute device.Stream, stage int) (err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	comms, err := compute.Device().NewStream("comm")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, comms.Close()) }()
	params := deep(3, dtype.F32)
	z, err := New(ctx, g, compute, comms, params, Options{PlanOptions: PlanOptions{Stage: stage, FirstBucket: 1, BucketCap: 100 << 10}, memory: copies{t}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, compute.Synchronize(ctx), comms.Synchronize(ctx), z.Close()) }()
	norm, err := tensor.Alloc(compute.Device(), dtype.F64, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, compute.Device().Free(norm.Buf)) }()
	value := func(e, factor int) float32 { return float32(factor * (e%1000 + 1)) }
	for step := 1; step <= 3; step++ {
		if err := z.StepBegin(true); err != nil {
			return err
		}
		for _, p := range slices.Backward(params) {
			z.Use(p.Block)
			grad, _ := z.Get(p)
			host := make([]float32, p.Numel())
			for e := range host {
				host[e] = value(e, step*(g.Rank()+1))
			}
			compute.Copy(grad.Buf, device.Of(host))
			z.Ready(p)
			z.Done(p.Block)
		}
		if err := z.Finish(ctx); err != nil {
			return err
		}
		sum := []float64{float64(g.Rank() + 1)}
		compute.Copy(norm.Buf, device.Of(sum))
		z.AllReduce(norm)
		compute.Copy(device.Of(sum), norm.Buf)
		if err := compute.Synchronize(ctx); err != nil || sum[0] != 6 {
			return fmt.Errorf("step %d: a number summed over the ranks is %v, want 6 (%v)", step, sum[0], err)
		}
		for _, s := range z.Shards() {
			host := make([]float32, s.To-s.From)
			compute.Copy(device.Of(host), s.Grad.Buf)
			compute.Copy(s.Master.Buf, s.Grad.Buf)
			if err := compute.Synchronize(ctx); err != nil {
				return err
			}
			for i, x := range host {
				if want := value(s.From+i, step*6); x != want { // 1+2+3
					return fmt.Errorf("step %d: the gradient of %s[%d] is %v, want %v", step, s.Param.Name, s.From+i, x, want)
				}
			}
		}
		if err := z.Gather(); err != nil {
			return err
		}
		for _, p := range params {
			z.Use(p.Block)
			host := make([]float32, p.Numel())
			compute.Copy(device.Of(host), z.Weight(p).Buf)
			z.Done(p.Block)
			if err := compute.Synchronize(ctx); err != nil {
				return err
			}
			for e, x := range host {
				if want := value(e, step*6); x != want {
					return fmt.Errorf("step %d: the weight %s[%d] is %v, want %v", step, p.Name, e, x, want)
				}
			}
		}
	}
	return nil
}
