package zero_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/zero"
)

// Two ranks fit w*x = 3x by gradient descent, each with half of the data and half
// of the optimizer's state.
func Example() {
	groups, err := comm.Local(2)
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			if err := fit(context.Background(), g); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	// Output: w is 3.000
}

func fit(ctx context.Context, g *comm.Group) error {
	defer g.Close()
	compute, comms := device.NewCPUStream("compute", nil), device.NewCPUStream("comm", nil)
	defer compute.Close()
	defer comms.Close()
	p := &param.Param{Name: "w", Shape: []int{1}, DType: dtype.F32}
	z, err := zero.New(ctx, g, compute, comms, []*param.Param{p}, zero.Options{PlanOptions: zero.PlanOptions{Stage: 2}})
	if err != nil {
		return err
	}
	defer z.Close()
	if err := z.Gather(); err != nil {
		return err
	}
	x := float32(1 + g.Rank())
	for range 40 {
		if err := z.StepBegin(true); err != nil {
			return err
		}
		z.Use(p.Block)
		w := z.Weight(p)
		grad, _ := z.Get(p)
		compute.Do("backward", func() error {
			grad.F32()[0] = (w.F32()[0]*x - 3*x) * x
			return nil
		})
		z.Ready(p)
		z.Done(p.Block)
		if err := z.Finish(ctx); err != nil {
			return err
		}
		for _, s := range z.Shards() {
			compute.Do("descend", func() error {
				for i, d := range s.Grad.F32() {
					s.Master.F32()[i] -= 0.1 * d
				}
				return nil
			})
		}
		if err := z.Gather(); err != nil {
			return err
		}
	}
	z.Use(p.Block)
	w := z.Weight(p)
	z.Done(p.Block)
	if err := compute.Synchronize(ctx); err != nil {
		return err
	}
	if g.Rank() == 0 {
		fmt.Printf("w is %.3f\n", w.F32()[0])
	}
	return nil
}

// Three ranks fit y = 3x + 1 with momentum: each steps its part of the weights, and has
// momentum for that part alone.
func ExampleWrap() {
	groups, err := comm.Local(3)
	if err != nil {
		log.Fatal(err)
	}
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			defer g.Close()
			if err := fitLine(context.Background(), g); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	// Output: y = 3.000x + 1.000
}

func fitLine(ctx context.Context, g *comm.Group) error {
	w, dw := []float32{0, 0}, []float32{0, 0}
	model, err := zero.Wrap(ctx, g, []param.Var{param.Slice("w", w, dw)}, zero.Options{Op: comm.Avg, PlanOptions: zero.PlanOptions{Stage: 2}})
	if err != nil {
		return err
	}
	defer model.Close()
	momentum := map[*param.Param][]float32{}
	for _, s := range model.Shards() {
		momentum[s.Param] = make([]float32, s.To-s.From)
	}
	x := float32(g.Rank())
	for range 200 {
		if err := model.StepBegin(true); err != nil {
			return err
		}
		off := w[0]*x + w[1] - (3*x + 1)
		dw[0], dw[1] = off*x, off
		model.Ready(0)
		if err := model.Finish(ctx); err != nil {
			return err
		}
		for _, s := range model.Shards() {
			m, weight := momentum[s.Param], s.Master.F32()
			for i, d := range s.Grad.F32() {
				m[i] = 0.5*m[i] + d
				weight[i] -= 0.2 * m[i]
			}
		}
		if err := model.Gather(ctx); err != nil {
			return err
		}
	}
	if g.Rank() == 0 {
		fmt.Printf("y = %.3fx + %.3f\n", w[0], w[1])
	}
	return nil
}
