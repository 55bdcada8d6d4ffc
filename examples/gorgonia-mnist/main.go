// Command gorgonia-mnist trains a classifier of MNIST's digits by Gorgonia, on every
// rank of a job. The graph, the tape and the solver are Gorgonia's own; what makes it
// distributed are the taps in net.go, and comm.Join, ddp.Wrap and Taps.Run here.
//
//	go build -o gorgonia-mnist ./examples/gorgonia-mnist
//	gorun --nproc 2 -- ./gorgonia-mnist -data data/mnist
//
// configs/mnist-mlp.yaml says where to get the four files that belong into the folder.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	G "gorgonia.org/gorgonia"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/models/gorgonia/mnist"
)

func main() {
	log.SetFlags(0)
	folder := flag.String("data", "data/mnist", "folder with MNIST's four files")
	steps := flag.Int("steps", 2000, "steps, of 60 images each, of all ranks together")
	flag.Parse()

	ctx := context.Background()
	group, err := comm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	right, err := run(ctx, group, *folder, *steps)
	if err != nil {
		group.Abort(err) // the others end too
		log.Fatal(err)
	}
	if group.Rank() == 0 {
		fmt.Printf("%.1f %% of the test images are right after %d steps, ranks: %d\n", 100*right, *steps, group.Size())
	}
	if err := group.Close(); err != nil {
		log.Fatal(err)
	}
}

// batch is the images of a step over all ranks, which share it: 2, 3, 4, 5, 6, ... ranks
// have equal parts.
const batch = 60

// run trains, and returns the share of the test images that are told right.
func run(ctx context.Context, group *comm.Group, folder string, steps int) (float64, error) {
	train, test, err := mnist.Open(folder)
	if err != nil {
		return 0, err
	}
	mine := batch / group.Size()
	if mine*group.Size() != batch {
		return 0, fmt.Errorf("%d images cannot be shared by %d ranks: start a divisor of it", batch, group.Size())
	}

	var taps gorgonia.Taps
	net, err := newNet(mine, &taps)
	if err != nil {
		return 0, err
	}
	vars, err := taps.Vars()
	if err != nil {
		return 0, err
	}
	model, err := ddp.Wrap(ctx, group, vars, ddp.Options{Op: comm.Avg}) // the cost is a mean
	if err != nil {
		return 0, err
	}
	defer model.Close()

	machine := G.NewTapeMachine(net.graph)
	defer machine.Close()
	solver := G.NewAdamSolver(G.WithLearnRate(0.002))
	order := data.NewOrder(1, train.Len()) // the same on every rank
	for step := range steps {
		first := int64(step*batch + group.Rank()*mine)
		for i := range mine {
			net.put(i, train, order.At(first+int64(i)))
		}
		if err := taps.Run(ctx, machine, model); err != nil { // in RunAll's place
			return 0, err
		}
		if err := solver.Step(G.NodesToValueGrads(taps.Nodes())); err != nil {
			return 0, err
		}
		machine.Reset()
	}
	if err := model.CheckReplicas(ctx); err != nil {
		return 0, err
	}

	// Each rank looks at every Size-th batch of the test images.
	counts := make([]float64, 2) // right, and all
	for from := group.Rank() * mine; from < test.Len(); from += batch {
		n := min(mine, test.Len()-from)
		for i := range n {
			net.put(i, test, from+i)
		}
		if err := machine.RunAll(); err != nil {
			return 0, err
		}
		counts[0] += float64(net.right(n))
		counts[1] += float64(n)
		machine.Reset()
	}
	if err := model.Sum(ctx, counts); err != nil {
		return 0, err
	}
	return counts[0] / counts[1], nil
}
