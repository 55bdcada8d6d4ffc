package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	. "github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	mlx "github.com/gomlx/gomlx/pkg/ml/context"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/param"
)

// Loss builds the graph of a batch's mean loss, a scalar.
type Loss func(ctx *mlx.Context, x, y *Node) *Node

// Optimizer is what GoMLX's SGD and Adam have beside their interface: updates from
// gradients that come from elsewhere, in the order of the context's variables.
type Optimizer interface {
	UpdateGraphWithGradients(ctx *mlx.Context, grads []*Node, loss dtypes.DType)
}

// Step is a training step of a GoMLX model on one rank: one graph makes the loss and the
// gradients, ddp takes their mean over the ranks, and another graph updates the
// variables with that. Ranks whose batches have one size compute what a single
// process does with all their batches in one.
//
// GoMLX gives a graph's results when all of it has run, so nothing overlaps here.
type Step struct {
	gradients, update *mlx.Exec
	vars              []*mlx.Variable // trainable; gradients are in this order
	weights, grads    [][]float32     // where ddp reads and writes vars and their gradients
	ddp               *ddp.Model
}

// NewStep makes the step of a model and gives every rank the variables of rank 0. x and
// y are a batch, for its shape alone. Close ends it; the group stays the caller's.
func NewStep(ctx context.Context, g *comm.Group, backend backends.Backend, model *mlx.Context, loss Loss, o Optimizer, x, y *tensors.Tensor) (*Step, error) {
	s := &Step{}
	vars, err := s.build(backend, model, loss, o, x, y)
	if err != nil {
		err = fmt.Errorf("rank %d: %w", g.Rank(), err)
		g.Abort(err) // the others may be fine, and wait
		return nil, err
	}
	// GoMLX's losses are means, and so is what the ranks make of their gradients.
	if s.ddp, err = ddp.Wrap(ctx, g, vars, ddp.Options{Op: comm.Avg}); err != nil {
		return nil, err
	}
	for i, v := range s.vars {
		if err := v.SetValue(s.tensor(i, s.weights)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// build makes both graphs, and the list of the variables as ddp sees them.
func (s *Step) build(backend backends.Backend, model *mlx.Context, loss Loss, o Optimizer, x, y *tensors.Tensor) (vars []param.Var, err error) {
	s.gradients, err = mlx.NewExec(backend, model, func(ctx *mlx.Context, in []*Node) []*Node {
		l := loss(ctx, in[0], in[1])
		s.vars = s.vars[:0]
		var nodes []*Node
		for v := range ctx.IterVariables() {
			if v.Trainable && v.InUseByGraph(l.Graph()) {
				s.vars = append(s.vars, v)
				nodes = append(nodes, v.ValueGraph(l.Graph()))
			}
		}
		return append([]*Node{l}, Gradient(l, nodes...)...)
	})
	if err != nil {
		return nil, err
	}
	if err := s.gradients.PreCompile(x, y); err != nil { // which makes the variables
		return nil, err
	}
	if err := model.InitializeVariables(backend, nil); err != nil {
		return nil, err
	}
	s.update, err = mlx.NewExec(backend, model.Reuse().Checked(false), func(ctx *mlx.Context, grads []*Node) *Node {
		for _, v := range s.vars {
			v.ValueGraph(grads[0].Graph()) // the optimizer updates what the graph uses
		}
		o.UpdateGraphWithGradients(ctx, grads, dtypes.Float32)
		return Const(grads[0].Graph(), float32(0)) // a graph needs a result
	})
	if err != nil {
		return nil, err
	}
	for i, v := range s.vars {
		if v.DType() != dtypes.Float32 {
			return nil, fmt.Errorf("variable %s is of type %s; this example takes Float32 alone", v.ScopeAndName(), v.DType())
		}
		n := v.Shape().Size()
		s.weights, s.grads = append(s.weights, make([]float32, n)), append(s.grads, make([]float32, n))
		vars = append(vars, param.Slice(v.ScopeAndName(), s.weights[i], s.grads[i]))
	}
	return vars, s.read()
}

// read copies the variables' values to s.weights.
func (s *Step) read() error {
	for i, v := range s.vars {
		value, err := v.Value()
		if err != nil {
			return err
		}
		if err := flat(s.weights[i], value); err != nil {
			return err
		}
	}
	return nil
}

// Check compares the variables over the ranks, bit by bit. Where they differ, every rank
// gets an error that names them.
func (s *Step) Check(ctx context.Context) error {
	if err := s.read(); err != nil {
		return err
	}
	return s.ddp.CheckReplicas(ctx)
}

// Run makes one step with this rank's batch and returns the batch's loss.
func (s *Step) Run(ctx context.Context, x, y *tensors.Tensor) (loss float32, err error) {
	if err := s.ddp.StepBegin(true); err != nil {
		return 0, err
	}
	out, err := s.gradients.Exec(x, y)
	if err != nil {
		return 0, err
	}
	for i := range s.grads {
		if err := flat(s.grads[i], out[1+i]); err != nil {
			return 0, err
		}
		s.ddp.Ready(i)
	}
	if err := s.ddp.Finish(ctx); err != nil {
		return 0, err
	}
	means := make([]any, len(s.grads))
	for i := range means {
		means[i] = s.tensor(i, s.grads)
	}
	if _, err := s.update.Exec(means...); err != nil {
		return 0, err
	}
	return tensors.ToScalar[float32](out[0]), nil
}

// Close ends what NewStep has begun.
func (s *Step) Close() error { return s.ddp.Close() }

// tensor is a copy of flat[i], of the shape of variable i.
func (s *Step) tensor(i int, flat [][]float32) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(flat[i], s.vars[i].Shape().Dimensions...)
}

// flat copies the elements of src.
func flat(dst []float32, src *tensors.Tensor) error {
	return tensors.ConstFlatData(src, func(flat []float32) { copy(dst, flat) })
}
