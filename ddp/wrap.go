package ddp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/arrays"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Model is a model that computes in memory of its own, under data parallelism. Each
// gradient is copied into its bucket when it is Ready, and back when it is reduced.
// Models that can write into memory which they are given use a DDP itself, and save
// the copies.
//
// Methods are for one goroutine, the one that computes, and every rank makes the same
// calls, as those of DDP. The first error is final.
type Model struct {
	ddp     *DDP
	vars    []param.Var
	params  []*param.Param
	onHost  bool // the program computes in Go, and not on a stream
	compute device.Stream
	streams []device.Stream // our own, closed by Close
}

// Wrap makes a model whose passes are Go code data-parallel. All ranks get rank 0's
// weights; from then on equal gradients keep them equal, where every rank makes the
// same steps.
//
//	model, err := ddp.Wrap(ctx, group, []param.Var{
//		param.Slice("w", w, dw), param.Slice("b", b, db),
//	}, ddp.Options{Op: comm.Avg})
//	defer model.Close()
//	for each step {
//		model.StepBegin(true)
//		// forward and backward: dw and db are this rank's, overwritten
//		model.Ready(1) // b's gradient travels while w's is computed
//		model.Ready(0)
//		err = model.Finish(ctx) // dw and db are the mean over all ranks
//		// the optimizer, in plain Go, alike on every rank
//	}
//
// vars are in host memory and stay there until Close: slices must not be reallocated.
// They are listed in the order in which the forward pass uses them, alike on every
// rank; gradients may become ready in any order. A gradient is of its weight's type, or
// of any where o.GradDType says in which all of them are kept and reduced.
//
// The group stays the caller's to close, behind the model. ctx bounds the comparison
// of the ranks and the copy of the weights.
func Wrap(ctx context.Context, g Group, vars []param.Var, o Options) (*Model, error) {
	return wrap(ctx, g, nil, vars, o)
}

// WrapOn is Wrap for a model whose passes are work on a stream, a GPU's as a rule, and
// whose vars lie in that stream's memory. Nothing is waited for on the host: Ready takes
// the gradient at the current place of the stream, and what is enqueued behind Finish
// sees it reduced. The stream stays the caller's to close, behind the model.
func WrapOn(ctx context.Context, g Group, compute device.Stream, vars []param.Var, o Options) (*Model, error) {
	return wrap(ctx, g, compute, vars, o)
}

func wrap(ctx context.Context, g Group, compute device.Stream, vars []param.Var, o Options) (*Model, error) {
	m := &Model{vars: vars, compute: compute}
	if compute == nil {
		m.onHost, m.compute = true, device.NewCPUStream("compute", nil)
		m.streams = append(m.streams, m.compute)
	}
	if err := m.open(ctx, g, o); err != nil {
		g.Abort(err) // the others may be fine, and wait; where all have failed it changes nothing
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Model) open(ctx context.Context, g Group, o Options) error {
	var err error
	if m.params, err = param.Describe("ddp", m.vars); err != nil {
		return err
	}
	for i, v := range m.vars {
		onHost := m.compute.Device().Kind() == device.CPU
		switch {
		case v.Weight.Buf.OnHost() != onHost || !v.Grad.None() && v.Grad.Buf.OnHost() != onHost:
			return fmt.Errorf("ddp: %s is not in memory of %s, where the model computes: Wrap takes host memory, WrapOn that of its stream", v.Name, m.compute.Device())
		case o.GradDType == dtype.Invalid && !v.Grad.None() && v.Grad.DType != m.params[i].DType:
			return fmt.Errorf("ddp: %s has weight %s and gradient %s: set Options.GradDType, the type in which gradients are kept", v.Name, v.Weight, v.Grad)
		}
	}
	comms, err := m.compute.Device().NewStream("communication")
	if err != nil {
		return fmt.Errorf("ddp: %s: a stream for communication: %w", agree.Who(g, g.Rank()), err)
	}
	m.streams = append(m.streams, comms)
	if m.ddp, err = New(ctx, g, m.compute, comms, m.params, o); err != nil {
		return err
	}
	return m.Broadcast(ctx, 0)
}

// StepBegin begins a micro-step, before the forward pass. With sync true its gradients
// are reduced. With sync false (PyTorch's no_sync) they stay on this rank, and are
// added to by the micro-steps that follow, up to a synced one, which reduces their sum:
// each backward pass still overwrites its gradients, as the first one does. See
// (*DDP).StepBegin.
func (m *Model) StepBegin(sync bool) error { return m.ddp.StepBegin(sync) }

// Ready says that the gradient of variable i, counted as Wrap got them, is complete.
// It must stay unchanged until Finish returns, or on a stream until the stream has come
// past Finish. In a synced micro-step the bucket that it completes is reduced at once,
// beside the rest of the backward pass.
//
// Errors are returned by Finish: a second Ready of one variable, and one of a frozen
// one. i out of range panics.
func (m *Model) Ready(i int) {
	p := m.params[i]
	if p.Frozen {
		m.ddp.Ready(p) // which says what is wrong
		return
	}
	if m.ddp.err != nil {
		return
	}
	grad, add := m.ddp.Get(p)
	if err := m.take(grad, m.vars[i].Grad, add); err != nil {
		m.ddp.fail(fmt.Errorf("Ready of %s: %w", p.Name, err))
	}
	m.ddp.Ready(p)
}

// take enqueues bucket = grad, or bucket += grad.
func (m *Model) take(bucket, grad tensor.Tensor, add bool) error {
	host, onCPU := m.ddp.memory.(arrays.Host)
	switch {
	case !add:
		m.convert(bucket, grad)
	case bucket.DType == dtype.F32 && grad.DType != dtype.F64:
		m.ddp.memory.Add(m.compute, bucket, grad)
	case bucket.DType == dtype.F64 && grad.DType == dtype.F64 && onCPU:
		m.compute.(arrays.HostStream).Do(host.User+": add", func() error {
			for i, x := range grad.F64() {
				bucket.F64()[i] += x
			}
			return nil
		})
	default:
		return fmt.Errorf("a gradient %s cannot be added up in %s over several micro-steps: set Options.GradDType to f32, or reduce in each", grad, bucket.DType)
	}
	return nil
}

func (m *Model) convert(dst, src tensor.Tensor) {
	if dst.DType == src.DType {
		m.compute.Copy(dst.Buf, src.Buf)
		return
	}
	m.ddp.memory.Convert(m.compute, dst, src)
}

// Finish ends a micro-step. Every variable that is not frozen must be Ready; under
// Options.FindUnused those that are not count as zeros.
//
// After a synced micro-step the gradients are the sum over all micro-steps since the
// last synced one and all ranks (with comm.Avg their mean over the ranks), the same bits
// on every rank; one that no rank has (FindUnused) is zero. After one that was not
// synced they are as the backward pass left them, and free to be overwritten. It waits until that is so, at most until ctx
// ends; a WrapOn's does not wait.
//
// Its error ends the group: one that the other ranks have found, such as a lost rank,
// is the same on all of them.
func (m *Model) Finish(ctx context.Context) error {
	sync := m.ddp.sync
	if err := m.ddp.Finish(ctx); err != nil {
		return err
	}
	if sync {
		for i, v := range m.vars {
			if v.Grad.None() {
				continue
			}
			if grad := m.ddp.Grad(m.params[i]); grad.None() {
				m.ddp.memory.Clear(m.compute, v.Grad.Buf)
			} else {
				m.convert(v.Grad, grad)
			}
		}
	}
	if !m.onHost {
		return nil
	}
	if err := m.compute.Synchronize(ctx); err != nil {
		return m.ddp.fail(err)
	}
	return nil
}

// Join is for ranks that hold different amounts of data, see (*DDP).Join. A rank that
// says false makes StepBegin(true) and Finish without a Ready between them, and gets the
// others' gradients.
func (m *Model) Join(ctx context.Context, more bool) (present int, err error) {
	return m.ddp.Join(ctx, more)
}

// Broadcast copies root's weights to all ranks, bit by bit, as Wrap has done from rank
// 0: for a program that has read a checkpoint on one rank. The host waits for it, until
// ctx ends. It belongs outside of a micro-step.
func (m *Model) Broadcast(ctx context.Context, root int) error {
	switch {
	case m.ddp.err != nil:
		return m.ddp.err
	case m.ddp.open:
		return m.ddp.fail(errors.New("Broadcast within a micro-step"))
	}
	return m.ddp.BroadcastWeights(ctx, m.params, m.weight, root)
}

// CheckReplicas compares all ranks' weights. Where they differ the error is a
// *DriftError, see (*DDP).CheckReplicas. The host waits for it, until ctx ends.
func (m *Model) CheckReplicas(ctx context.Context) error {
	return m.ddp.CheckReplicas(ctx, m.params, m.weight)
}

// Sum replaces values by their sums over the ranks: losses, counts, whatever a program
// adds up beside its gradients. Every rank calls it with as many, at the same place
// among its other calls and outside of a micro-step, and gets the same bits. values are
// in host memory; the host waits, until ctx ends.
func (m *Model) Sum(ctx context.Context, values []float64) error {
	d := m.ddp
	switch {
	case d.err != nil:
		return d.err
	case d.open:
		return d.fail(errors.New("Sum within a micro-step"))
	}
	d.group.AllReduce(d.hostComm, device.Of(values), dtype.F64, comm.Sum)
	if err := d.hostComm.Synchronize(ctx); err != nil {
		return d.fail(fmt.Errorf("the sum of %d values: %w", len(values), err))
	}
	return nil
}

func (m *Model) weight(p *param.Param) tensor.Tensor {
	for i, q := range m.params {
		if q == p {
			return m.vars[i].Weight
		}
	}
	panic("ddp: " + p.Name + " is no parameter of this model")
}

// DDP is what reduces the model's gradients: for its Stats, Plan, Order and
// BroadcastBuffers.
func (m *Model) DDP() *DDP { return m.ddp }

// Err is the first error, nil while there is none.
func (m *Model) Err() error { return m.ddp.Err() }

// Close waits for the work under way and frees what Wrap has made. Nothing else may be
// called afterwards.
func (m *Model) Close() error {
	if len(m.streams) == 0 {
		return nil
	}
	// The group's timeout bounds the wait. An error of a stream is one of a collective,
	// which Finish has returned.
	m.compute.Synchronize(context.Background())
	for _, s := range m.streams {
		s.Close()
	}
	m.streams = nil
	if m.ddp == nil {
		return nil
	}
	return m.ddp.Close()
}
