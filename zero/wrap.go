package zero

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Model is a model that computes in slices of its own, whose optimizer is spread over
// the ranks: each steps its Shards alone, and needs moments for those alone. Weights and
// gradients of the program stay whole; a model for which they are too large uses a Zero
// itself, and memory that it gives.
//
// Methods are for one goroutine, the one that computes, and every rank makes the same
// calls. The first error is final.
type Model struct {
	zero           *Zero
	vars           []param.Var
	params         []*param.Param // of all vars; New gets those that are not frozen
	compute, comms device.Stream
}

// Wrap makes a model whose passes are Go code train with one optimizer for all ranks.
// All ranks get rank 0's weights.
//
//	model, err := zero.Wrap(ctx, group, []param.Var{
//		param.Slice("w", w, dw), param.Slice("b", b, db),
//	}, zero.Options{PlanOptions: zero.PlanOptions{Stage: 2}})
//	defer model.Close()
//	for each step {
//		model.StepBegin(true)
//		// forward and backward: dw and db are this rank's, overwritten
//		model.Ready(1) // b's gradient travels while w's is computed
//		model.Ready(0)
//		err = model.Finish(ctx)
//		for _, s := range model.Shards() {
//			// the optimizer, in plain Go: s.Master.F32() from s.Grad.F32()
//		}
//		err = model.Gather(ctx) // w and b are what all ranks have made of them
//	}
//
// vars are float32 in host memory and stay there until Close: slices must not be
// reallocated. They are listed in the order in which the forward pass uses them, alike
// on every rank. The stage is 1 or 2: in stage 2 a rank keeps reduced gradients for its
// shards alone. Beside the program's memory a rank holds what Plan().Memory of
// (*Model).Zero says.
//
// The group stays the caller's to close, behind the model. ctx bounds the comparison
// of the ranks and the copy of the weights.
func Wrap(ctx context.Context, g Group, vars []param.Var, o Options) (*Model, error) {
	m := &Model{vars: vars, compute: device.NewCPUStream("compute", nil), comms: device.NewCPUStream("communication", nil)}
	if err := m.open(ctx, g, o); err != nil {
		g.Abort(err) // the others may be fine, and wait; where all have failed it changes nothing
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Model) open(ctx context.Context, g Group, o Options) error {
	var err error
	if m.params, err = param.Describe("zero", m.vars); err != nil {
		return err
	}
	if o.Stage == 3 {
		return errors.New("zero: Stage is 3: the slices that Wrap gets are whole weights; take stage 1 or 2, or New")
	}
	if o.GradDType != dtype.Invalid && o.GradDType != dtype.F32 {
		return fmt.Errorf("zero: GradDType is %s: the gradients that Wrap gets are f32; ReduceDType says what travels", o.GradDType)
	}
	var trainable []*param.Param
	for i, v := range m.vars {
		for _, t := range []tensor.Tensor{v.Weight, v.Grad} {
			if !t.None() && (t.DType != dtype.F32 || !t.Buf.OnHost()) {
				return fmt.Errorf("zero: %s has weight %s and gradient %s: Wrap takes float32 in host memory", v.Name, v.Weight, v.Grad)
			}
		}
		if !m.params[i].Frozen {
			trainable = append(trainable, m.params[i])
		}
	}
	if m.zero, err = New(ctx, g, m.compute, m.comms, trainable, o); err != nil {
		return err
	}
	return m.Broadcast(ctx, 0)
}

// Broadcast copies root's weights to all ranks, bit by bit, as Wrap has done from rank
// 0: for a program that has read a checkpoint on one rank. The host waits for it, until
// ctx ends. It belongs outside of a micro-step.
func (m *Model) Broadcast(ctx context.Context, root int) error {
	z := m.zero
	switch {
	case z.err != nil:
		return z.err
	case z.open:
		return z.fail(errors.New("Broadcast within a micro-step"))
	}
	for _, v := range m.vars {
		z.group.Broadcast(m.comms, v.Weight.Buf, v.Weight.DType, root)
	}
	if err := m.comms.Synchronize(ctx); err != nil {
		return z.fail(fmt.Errorf("broadcasting the weights of %s: %w", agree.Who(z.group, root), err))
	}
	for i, p := range m.params {
		if p.Frozen {
			continue
		}
		if err := z.SetWeight(ctx, p, 0, m.vars[i].Weight.F32()); err != nil {
			return z.fail(err)
		}
	}
	return m.Gather(ctx)
}

// StepBegin begins a micro-step, before the forward pass. Each backward pass overwrites
// its gradients; those of all micro-steps up to one with sync true are added up. See
// (*Zero).StepBegin.
func (m *Model) StepBegin(sync bool) error { return m.zero.StepBegin(sync) }

// Ready says that the gradient of variable i, counted as Wrap got them, is complete.
// It must stay unchanged until Finish returns. The bucket that it completes is reduced
// at once, beside the rest of the backward pass; in stage 1 in a synced micro-step.
//
// Errors are returned by Finish: a second Ready of one variable, and one of a frozen
// one. i out of range panics.
func (m *Model) Ready(i int) {
	p := m.params[i]
	switch {
	case m.zero.err != nil:
		return
	case p.Frozen:
		m.zero.fail(fmt.Errorf("Ready of %s, which is frozen", p.Name))
		return
	}
	grad, add := m.zero.Get(p)
	switch {
	case m.zero.err != nil:
		return
	case add:
		m.zero.memory.Add(m.compute, grad, m.vars[i].Grad)
	default:
		m.compute.Copy(grad.Buf, m.vars[i].Grad.Buf)
	}
	m.zero.Ready(p)
}

// Finish ends a micro-step. Every variable that is not frozen must be Ready. It waits
// until the program's gradients are free to be overwritten, and after a synced
// micro-step until Shards are reduced, at most until ctx ends. The program's gradients
// stay this rank's own.
func (m *Model) Finish(ctx context.Context) error {
	if err := m.zero.Finish(ctx); err != nil {
		return err
	}
	if err := m.compute.Synchronize(ctx); err != nil {
		return m.zero.fail(err)
	}
	return nil
}

// Shards lists what this rank's optimizer steps, between Finish and Gather: pieces of
// variables, whose Master.F32() are weights to be changed, and Grad.F32() the reduced
// gradients. They are at the same places in every step. A rank may have none.
func (m *Model) Shards() []Shard { return m.zero.Shards() }

// Norm is the norm of the reduced gradients over all ranks' shards, between a synced
// Finish and Gather. Every rank calls it, and gets the same bits. The host waits for
// it, until ctx ends.
func (m *Model) Norm(ctx context.Context) (float64, error) {
	var squares float64
	for _, s := range m.Shards() {
		for _, x := range s.Grad.F32() {
			squares += float64(x) * float64(x)
		}
	}
	sum := []float64{squares}
	if err := m.Sum(ctx, sum); err != nil {
		return 0, err
	}
	return math.Sqrt(sum[0]), nil
}

// Sum replaces values by their sums over the ranks: losses, counts, whatever a program
// adds up beside its gradients. Every rank calls it with as many, at the same place
// among its other calls and outside of a micro-step, and gets the same bits. The host
// waits, until ctx ends.
func (m *Model) Sum(ctx context.Context, values []float64) error {
	z := m.zero
	switch {
	case z.err != nil:
		return z.err
	case z.open:
		return z.fail(errors.New("Sum within a micro-step"))
	}
	z.group.AllReduce(m.comms, device.Of(values), dtype.F64, comm.Sum)
	if err := m.comms.Synchronize(ctx); err != nil {
		return z.fail(fmt.Errorf("the sum of %d values: %w", len(values), err))
	}
	return nil
}

// Gather brings all ranks' shards into the program's weights. A step that is to change
// nothing leaves it out, on every rank alike. The host waits for it, until ctx ends.
func (m *Model) Gather(ctx context.Context) error {
	z := m.zero
	if err := z.Gather(); err != nil {
		return err
	}
	z.Use(0)
	for i, p := range m.params {
		if !p.Frozen {
			m.compute.Copy(m.vars[i].Weight.Buf, z.Weight(p).Buf)
		}
	}
	z.Done(0)
	if err := m.compute.Synchronize(ctx); err != nil {
		return z.fail(fmt.Errorf("gathering the weights: %w", err))
	}
	return nil
}

// Zero is what shards the training: for its Plan, Stats, and the ranges that this rank
// writes of a checkpoint. Its parameters are the variables that are not frozen.
func (m *Model) Zero() *Zero { return m.zero }

// Err is the first error, nil while there is none.
func (m *Model) Err() error { return m.zero.Err() }

// Close waits for the work under way, at most for the group's timeout, and frees what
// Wrap has made. Nothing else may be called afterwards; a second Close does nothing.
func (m *Model) Close() error {
	if m.compute == nil {
		return nil
	}
	// An error of a stream is one of a collective, which Finish or Gather has returned.
	m.compute.Close()
	m.comms.Close()
	m.compute, m.comms = nil, nil
	if m.zero == nil {
		return nil
	}
	return m.zero.Close()
}
