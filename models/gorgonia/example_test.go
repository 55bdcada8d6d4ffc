package gorgonia_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/models/gorgonia"
)

// Two ranks, each with half of the points of a line, find the line.
func Example() {
	groups, err := comm.Local(2) // in a program that gorun starts: comm.Join
	if err != nil {
		log.Fatal(err)
	}
	x := [][]float64{{-1, 1, 0, 1}, {1, 1, 2, 1}} // of each rank two rows: x, 1
	y := [][]float64{{-2, 1}, {4, 7}}
	lines := make([]string, len(groups))
	var ranks sync.WaitGroup
	for r, group := range groups {
		ranks.Go(func() {
			defer group.Close()
			var err error
			if lines[r], err = fit(group, x[r], y[r]); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	for r, line := range lines {
		fmt.Printf("rank %d: %s\n", r, line)
	}
	// Output:
	// rank 0: y = 3.00 x + 1.00
	// rank 1: y = 3.00 x + 1.00
}

func fit(group *comm.Group, x, y []float64) (string, error) {
	ctx := context.Background()
	var taps gorgonia.Taps
	g := G.NewGraph()
	input := func(name string, values []float64, shape ...int) *G.Node {
		return G.NewTensor(g, gt.Float64, len(shape), G.WithShape(shape...), G.WithName(name),
			G.WithValue(gt.New(gt.WithShape(shape...), gt.WithBacking(values))))
	}
	w := input("w", []float64{0, 0}, 2) // the slope and the intercept
	line := G.Must(G.Mul(input("x", x, 2, 2), G.Must(taps.On(w))))
	cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Sub(line, input("y", y, 2)))))))
	if _, err := taps.Grad(cost); err != nil {
		return "", err
	}

	vars, err := taps.Vars()
	if err != nil {
		return "", err
	}
	model, err := ddp.Wrap(ctx, group, vars, ddp.Options{Op: comm.Sum})
	if err != nil {
		return "", err
	}
	defer model.Close()
	machine := G.NewTapeMachine(g)
	defer machine.Close()
	solver := G.NewVanillaSolver(G.WithLearnRate(0.05))
	for range 200 {
		if err := taps.Run(ctx, machine, model); err != nil {
			return "", err
		}
		if err := solver.Step(G.NodesToValueGrads(taps.Nodes())); err != nil {
			return "", err
		}
		machine.Reset()
	}
	found := w.Value().Data().([]float64)
	return fmt.Sprintf("y = %.2f x + %.2f", found[0], found[1]), nil
}
