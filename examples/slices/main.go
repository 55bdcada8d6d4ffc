// Command slices trains a small network by hand, on every rank of a job. Its weights are
// plain slices and its backward pass is a loop: what makes it distributed are comm.Join,
// ddp.Wrap, and the lines from StepBegin to Finish.
//
//	go build -o slices ./examples/slices
//	gorun --nproc 4 -- ./slices
//
// The loss at the end is the same on any number of ranks.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
)

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	group, err := comm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	loss, err := train(ctx, group, 1000)
	if err != nil {
		log.Fatal(err)
	}
	if group.Rank() == 0 {
		fmt.Printf("loss %.6f after 1000 steps, ranks: %d\n", loss, group.Size())
	}
	if err := group.Close(); err != nil {
		log.Fatal(err)
	}
}

// train fits the network to all points, of which this rank takes every Size-th, and
// returns the loss over all of them.
func train(ctx context.Context, group *comm.Group, steps int) (float64, error) {
	net := newNetwork(16)
	model, err := ddp.Wrap(ctx, group, net.vars(), ddp.Options{})
	if err != nil {
		return 0, err
	}
	defer model.Close()

	points := curve(96)
	loss := make([]float64, 1)
	for range steps {
		if err := model.StepBegin(true); err != nil {
			return 0, err
		}
		loss[0] = 0
		net.clear()
		for i := group.Rank(); i < len(points); i += group.Size() {
			// The sum over all ranks is wanted, so the mean is taken here, over all points.
			loss[0] += net.add(points[i], 1/float64(len(points)))
		}
		for i := range net.vars() {
			model.Ready(i)
		}
		if err := model.Finish(ctx); err != nil {
			return 0, err
		}
		net.descend(0.05)
	}
	if err := model.CheckReplicas(ctx); err != nil {
		return 0, err
	}
	err = model.Sum(ctx, loss)
	return loss[0], err
}
