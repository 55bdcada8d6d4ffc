package main

import (
	"context"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/param"
)

// regression is y = w·x over samples that every rank can make.
type regression struct {
	w, dw []float64
}

const (
	features = 32
	samples  = 128
)

func newRegression() *regression {
	return &regression{make([]float64, features), make([]float64, features)}
}

func (r *regression) vars() []param.Var { return []param.Var{param.Slice("w", r.w, r.dw)} }

// off is how far the prediction for sample i is from the truth, and x the sample.
func (r *regression) off(i int, x []float64) float64 {
	off := 0.0
	for j := range x {
		x[j] = math.Sin(float64(i*features + j*j))
		off += (r.w[j] - math.Cos(float64(j))) * x[j]
	}
	return off
}

func (r *regression) loss() float64 {
	x, loss := make([]float64, features), 0.0
	for i := range samples {
		off := r.off(i, x)
		loss += off * off / samples
	}
	return loss
}

// backward adds the part of the gradient that comes from every size-th sample.
func (r *regression) backward(rank, size int) {
	clear(r.dw)
	x := make([]float64, features)
	for i := rank; i < samples; i += size {
		off := r.off(i, x)
		for j := range x {
			r.dw[j] += 2 * off * x[j] / samples
		}
	}
}

// train trains on all ranks, publishes rank 0's weights before the first and behind
// each step, and returns the number of steps: the given one, or where that is 0 as many
// as it takes until ctx ends on some rank.
func train(ctx context.Context, group *comm.Group, r *regression, steps int, p *publisher) (int, error) {
	inside := context.WithoutCancel(ctx) // the ranks finish their step
	model, err := ddp.Wrap(inside, group, r.vars(), ddp.Options{})
	if err != nil {
		return 0, err
	}
	defer model.Close()
	for step := 0; ; step++ {
		if group.Rank() == 0 {
			p.publish(step, r.vars())
		}
		stop := []float64{0}
		if ctx.Err() != nil || steps > 0 && step == steps {
			stop[0] = 1
		}
		if err := model.Sum(inside, stop); err != nil || stop[0] > 0 {
			return step, err
		}
		model.StepBegin(true)
		r.backward(group.Rank(), group.Size())
		model.Ready(0)
		if err := model.Finish(inside); err != nil {
			return step, err
		}
		for j, d := range r.dw {
			r.w[j] -= 0.02 * d
		}
	}
}
