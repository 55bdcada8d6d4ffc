// gomlx trains a small GoMLX model on as many ranks as gorun starts:
//
//	gorun --nproc 2 -- go run .
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"

	"github.com/gomlx/gomlx/backends/simplego"
	. "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	mlx "github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/layers"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"

	"github.com/gorun-dev/gorun/comm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is one rank.
func run(ctx context.Context) (err error) {
	group, err := comm.Join(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	losses, _, err := train(ctx, group, 1000, 64)
	if err == nil && group.Rank() == 0 {
		fmt.Printf("%d ranks: loss %.4f in the first step, %.4f in the last; the replicas are bit-identical\n",
			group.Size(), losses[0], losses[len(losses)-1])
	}
	return err
}

// seed, which tests set, makes the variables' first values the same in every run, and
// other ones on every rank: rank 0's count.
var seed int64

// train makes steps with batches of so many samples over all ranks, and checks in the
// end that the ranks have the same variables. It returns this rank's losses and the
// variables.
func train(ctx context.Context, g *comm.Group, steps, samples int) (losses []float32, weights [][]float32, err error) {
	backend, err := simplego.New("")
	if err != nil {
		return nil, nil, err
	}
	defer backend.Finalize()
	sgd := optimizers.StochasticGradientDescent().WithLearningRate(0.05).WithDecay(false)
	x, y := batch(g, 0, samples)
	model := mlx.New()
	if seed != 0 {
		model.SetParam(mlx.ParamInitialSeed, seed+int64(g.Rank()))
	}
	step, err := NewStep(ctx, g, backend, model, loss, sgd, x, y)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, step.Close()) }()
	for i := range steps {
		x, y := batch(g, i, samples)
		l, err := step.Run(ctx, x, y)
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, l)
	}
	if err := step.Check(ctx); err != nil {
		return nil, nil, err
	}
	return losses, step.weights, nil
}

// loss is that of a network with one hidden layer.
func loss(ctx *mlx.Context, x, y *Node) *Node {
	hidden := Tanh(layers.Dense(ctx.In("hidden"), x, true, 32))
	return ReduceAllMean(Square(Sub(layers.Dense(ctx.In("out"), hidden, true, 1), y)))
}

// batch is this rank's part of batch i: points of a square, and a wave over it.
func batch(g *comm.Group, i, samples int) (x, y *tensors.Tensor) {
	n := samples / g.Size()
	points, waves := make([]float32, 2*n), make([]float32, n)
	for k := range n {
		sample := float64(i*samples + g.Rank()*n + k)
		u, v := math.Mod(0.754877666*sample, 1), math.Mod(0.569840291*sample, 1) // fill the square evenly
		points[2*k], points[2*k+1] = float32(u), float32(v)
		waves[k] = float32(math.Sin(4*u) * math.Cos(3*v))
	}
	return tensors.FromFlatDataAndDimensions(points, n, 2), tensors.FromFlatDataAndDimensions(waves, n, 1)
}
