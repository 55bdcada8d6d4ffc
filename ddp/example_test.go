package ddp_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
)

// A plan needs no ranks and no memory: it is what --dry-run prints.
func ExampleNewPlan() {
	plan, err := ddp.NewPlan([]*param.Param{
		{Name: "embed", Shape: []int{32000, 64}, DType: dtype.F32},
		{Name: "layer.w", Shape: []int{64, 4096}, DType: dtype.F32},
		{Name: "layer.b", Shape: []int{4096}, DType: dtype.F32},
		{Name: "head", Shape: []int{1000, 64}, DType: dtype.F32},
	}, ddp.PlanOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(plan)
	// Output:
	// bucket plan 0479fee87de9acf5, before the rebuild in the first step's ready order
	//   bucket  type    bytes  parameters  first … last
	//        0   f32  1320960           3  head … layer.w
	//        1   f32  8192000           1  embed
}

// Two ranks accumulate two micro-steps each and reduce once.
func Example() {
	groups, err := comm.Local(2)
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	results := make([]string, len(groups))
	for r, g := range groups {
		ranks.Go(func() {
			var err error
			if results[r], err = train(g); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	for _, line := range results {
		fmt.Println(line)
	}
	// Output:
	// rank 0: gradient of w is [22 22 22], in 1 bucket
	// rank 1: gradient of w is [22 22 22], in 1 bucket
}

func train(g *comm.Group) (string, error) {
	ctx := context.Background()
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer g.Close()
	defer compute.Close()
	defer comms.Close()

	w := &param.Param{Name: "w", Shape: []int{3}, DType: dtype.F32}
	sink, err := ddp.New(ctx, g, compute, comms, []*param.Param{w}, ddp.Options{})
	if err != nil {
		return "", err
	}
	defer sink.Close()
	const accumulate = 2
	for i := range accumulate {
		if err := sink.StepBegin(i == accumulate-1); err != nil {
			return "", err
		}
		backward(compute, sink, w, float32(1+g.Rank()*9))
		if err := sink.Finish(ctx); err != nil {
			return "", err
		}
	}
	if err := compute.Synchronize(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("rank %d: gradient of w is %v, in %d bucket", g.Rank(), sink.Grad(w).F32(), len(sink.Buckets())), nil
}

// backward is a model whose gradient is value in all places.
func backward(compute *device.CPUStream, sink param.GradSink, w *param.Param, value float32) {
	grad, add := sink.Get(w)
	compute.Do("gradient of w", func() error {
		for i, g := range grad.F32() {
			if !add {
				g = 0
			}
			grad.F32()[i] = g + value
		}
		return nil
	})
	sink.Ready(w)
}

// Gradients travel as bytes. A program that skips a step calls Discard on the hook.
func ExampleOptions_compress() {
	groups, err := comm.Local(2)
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			if err := trainCompressed(g); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	// Output:
	// each of 1000 elements is 11.000, for 3.9 times fewer bytes
}

func trainCompressed(g *comm.Group) error {
	ctx := context.Background()
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer g.Close()
	defer compute.Close()
	defer comms.Close()

	hook, err := compress.New(compress.Options{Scheme: compress.Int8})
	if err != nil {
		return err
	}
	w := &param.Param{Name: "w", Shape: []int{1000}, DType: dtype.F32}
	sink, err := ddp.New(ctx, g, compute, comms, []*param.Param{w}, ddp.Options{Compress: hook})
	if err != nil {
		return err
	}
	defer sink.Close()
	if err := sink.StepBegin(true); err != nil {
		return err
	}
	backward(compute, sink, w, float32(1+g.Rank()*9))
	if err := sink.Finish(ctx); err != nil {
		return err
	}
	if err := compute.Synchronize(ctx); err != nil {
		return err
	}
	if s := hook.Stats(); g.Rank() == 0 {
		fmt.Printf("each of %d elements is %.3f, for %.1f times fewer bytes\n", w.Numel(), sink.Grad(w).F32()[999], float64(s.Plain)/float64(s.Sent))
	}
	return nil
}

// Rank 0 has one batch and rank 1 has three. Both make three steps and leave
// together; the gradient is the sum over those that have data.
func ExampleDDP_Join() {
	groups, err := comm.Local(2)
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	results := make([]string, len(groups))
	for r, g := range groups {
		ranks.Go(func() {
			var err error
			if results[r], err = trainUneven(g, []int{1, 3}[r]); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	for _, line := range results {
		fmt.Println(line)
	}
	// Output:
	// rank 0: gradients 11 10 10
	// rank 1: gradients 11 10 10
}

func trainUneven(g *comm.Group, batches int) (string, error) {
	ctx := context.Background()
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer g.Close()
	defer compute.Close()
	defer comms.Close()

	w := &param.Param{Name: "w", Shape: []int{1}, DType: dtype.F32}
	sink, err := ddp.New(ctx, g, compute, comms, []*param.Param{w}, ddp.Options{})
	if err != nil {
		return "", err
	}
	defer sink.Close()
	result := fmt.Sprintf("rank %d: gradients", g.Rank())
	for {
		present, err := sink.Join(ctx, batches > 0)
		if err != nil {
			return "", err
		}
		if present == 0 {
			return result, nil
		}
		if err := sink.StepBegin(true); err != nil {
			return "", err
		}
		if batches > 0 {
			backward(compute, sink, w, float32(1+g.Rank()*9))
			batches--
		}
		if err := sink.Finish(ctx); err != nil {
			return "", err
		}
		if err := compute.Synchronize(ctx); err != nil {
			return "", err
		}
		result += fmt.Sprintf(" %v", sink.Grad(w).F32()[0])
	}
}
