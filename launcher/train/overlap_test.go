package train

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/llama"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// gatedSink stops the compute stream in the middle of the backward pass until the
// first bucket has been reduced. If the bucket left only after the middle, the
// stream would wait for itself.
type gatedSink struct {
	*ddp.DDP
	compute, comms *device.CPUStream
	first          *param.Param // whose Ready completes the first bucket
	middle         *param.Param // with whose Ready half of the backward pass is enqueued
	reduced        device.Event
	gated          bool
}

func (g *gatedSink) Ready(p *param.Param) {
	g.DDP.Ready(p)
	switch p {
	case g.first:
		g.reduced = g.comms.Record()
	case g.middle:
		if g.reduced == nil {
			return // the first bucket is not even enqueued: the test sees gated unset
		}
		g.gated = true
		reduced := g.reduced
		g.compute.Do("gate", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			return reduced.Sync(ctx)
		})
	}
}

func TestTheFirstBucketIsReducedBeforeHalfOfTheBackwardPassIsDone(t *testing.T) {
	const ranks, b, seq = 3, 2, 16
	shape := llama.Config{Vocab: 64, Hidden: 32, Layers: 4, Heads: 4, KVHeads: 2, FFN: 96, MaxPositions: seq, RopeTheta: 1e4, NormEps: 1e-5}
	groups, err := comm.Local(ranks)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() {
			defer g.Close()
			if err := gatedStep(t.Context(), g, shape, b, seq); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
				g.Abort(err)
			}
		})
	}
	all.Wait()
}

func gatedStep(ctx context.Context, g *comm.Group, shape llama.Config, b, seq int) error {
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer comms.Close()
	defer compute.Close()
	ops, err := cpu.New(1, cpu.Options{})
	if err != nil {
		return err
	}
	dev := device.NewCPU()
	model, err := llama.New(shape, models.Env{Device: dev, Stream: compute, Ops: ops, B: b, T: seq})
	if err != nil {
		return err
	}
	weights, err := param.NewReplica(dev, model.Params())
	if err != nil {
		return err
	}
	for _, p := range model.Params() {
		model.Init(p, 1, weights.Weight(p).F32())
	}
	loss, err := tensor.Alloc(dev, dtype.F64, 1)
	if err != nil {
		return err
	}
	sink, err := ddp.New(ctx, g, compute, comms, model.Params(), ddp.Options{PlanOptions: ddp.PlanOptions{FirstBucket: 8 << 10, BucketCap: 32 << 10}})
	if err != nil {
		return err
	}
	middle := model.Params()[len(model.Params())/2]
	for step := range 3 { // the plan is rebuilt behind the first
		if err := sink.StepBegin(true); err != nil {
			return err
		}
		first := sink.Plan().Buckets[0].Params
		gate := &gatedSink{DDP: sink, compute: compute, comms: comms, first: first[len(first)-1], middle: middle}
		feed, err := newFeed(dev, b, seq, false)
		if err != nil {
			return err
		}
		batch := feed.Batch
		for i := range batch.Tokens.I32() {
			batch.Tokens.I32()[i], batch.Targets.I32()[i] = int32(i%64), int32((i+step)%64)
		}
		model.Forward(weights, batch, loss, true)
		model.Backward(weights, gate, 1)
		if err := sink.Finish(ctx); err != nil {
			return err
		}
		if err := compute.Synchronize(ctx); err != nil {
			return err
		}
		if !gate.gated {
			return errors.New("half of the backward pass was enqueued before the first bucket")
		}
	}
	return nil
}
