package gorgonia

import (
	"context"
	"errors"
	"fmt"
	"sync"

	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Taps are the parameters of one graph of one rank. The zero value is one without
// parameters. All methods are host calls for one goroutine.
type Taps struct {
	list    []*tap
	derived bool // Grad was called
	// ready takes the gradients of the pass under way, by their places in list; nil
	// where a machine runs by itself.
	ready func(i int) error
}

// On is the node to use in w's place, everywhere in the graph; the second call for
// one w returns the same node.
//
// w is a vector, matrix or larger tensor of float32 or float64, an input of the graph
// with a value whose memory is dense and row-major, and its name is its own among the
// taps'. Every rank taps the same parameters in the same order, best that of their use
// in the forward pass.
func (t *Taps) On(w *G.Node) (*G.Node, error) {
	for _, x := range t.list {
		if x.of == w {
			return x.node, nil
		}
	}
	if t.derived {
		return nil, fmt.Errorf("gorgonia: parameter %s: the gradients are taken already: tap all parameters before Grad", w.Name())
	}
	p, err := describe(w)
	if err != nil {
		return nil, fmt.Errorf("gorgonia: parameter %s: %w", w.Name(), err)
	}
	for _, other := range t.list {
		if other.param.Name == p.Name {
			return nil, fmt.Errorf("gorgonia: two parameters are called %s: give each a name of its own (WithName)", p.Name)
		}
	}
	memory, err := tensor.Pack(device.NewCPU(), p.DType, [][]int{p.Shape, p.Shape})
	if err != nil {
		return nil, fmt.Errorf("gorgonia: parameter %s: %w", p.Name, err)
	}
	x := &tap{taps: t, at: len(t.list), param: p, of: w, copy: memory[0], grad: memory[1]}
	if x.node, err = G.ApplyOp(tapOp{copyOp{identity{"tap of " + p.Name}, x.copy}, x}, w); err != nil {
		return nil, fmt.Errorf("gorgonia: parameter %s: %w", p.Name, err)
	}
	t.list = append(t.list, x)
	return x.node, nil
}

// describe is what w is to others.
func describe(w *G.Node) (*param.Param, error) {
	if !w.IsVar() {
		return nil, errors.New("it is not an input of the graph")
	}
	v, err := dense(w.Value())
	if err != nil {
		return nil, fmt.Errorf("its value: %w", err)
	}
	if v.IsScalar() {
		return nil, errors.New("it is a scalar; it may be a vector of one element")
	}
	if v.RequiresIterator() || v.DataOrder().IsColMajor() {
		return nil, errors.New("its value is a view of other memory, or column-major; give it one of its own, such as Materialize makes")
	}
	dt, err := typeOf(v)
	if err != nil {
		return nil, err
	}
	return &param.Param{Name: w.Name(), Shape: append([]int{}, v.Shape()...), DType: dt}, nil
}

// deriving is held while a graph is derived. Gorgonia's derivatives have constants that all
// graphs of a process share, and it notes their hashes in them.
var deriving sync.Mutex

// Grad takes the derivative of cost, a scalar of the graph, with respect to all taps'
// parameters, in G.Grad's place. It is called once the graph of the cost is complete,
// and before a machine is made. The nodes that it returns, in the order of On, are the
// gradients as this rank has them, and all of them belong to the outputs of a
// CompileFunction.
func (t *Taps) Grad(cost *G.Node) (G.Nodes, error) {
	if err := t.complete(); err != nil {
		return nil, err
	}
	deriving.Lock()
	defer deriving.Unlock()
	grads, err := G.Grad(cost, t.Nodes()...)
	if err != nil {
		return nil, fmt.Errorf("gorgonia: %w", err)
	}
	for i, x := range t.list {
		if grads[i], err = G.ApplyOp(endOp{identity{"end of " + x.param.Name}}, grads[i], x.node); err != nil {
			return nil, fmt.Errorf("gorgonia: the gradient of %s: %w", x.param.Name, err)
		}
	}
	t.derived = true
	return grads, nil
}

// Vars lists the parameters, in the order of On, as ddp.Wrap takes them. Their memory
// is that of the parameters' values, which stay where they are from now on: a Let of a
// parameter is found by the next Run. Their gradients lie in memory of the taps.
func (t *Taps) Vars() ([]param.Var, error) {
	list := make([]param.Var, len(t.list))
	for i, x := range t.list {
		weight, err := x.value()
		if err != nil {
			return nil, err
		}
		x.weight = weight
		list[i] = param.Var{Name: x.param.Name, Weight: weight, Grad: x.grad}
	}
	return list, nil
}

// Nodes lists the parameters in the order of On, as Gorgonia's solvers want them, by
// G.NodesToValueGrads.
func (t *Taps) Nodes() G.Nodes {
	list := make(G.Nodes, len(t.list))
	for i, x := range t.list {
		list[i] = x.of
	}
	return list
}

// Reducer adds up gradients over the ranks; *ddp.Model is one, made of Vars.
type Reducer interface {
	// StepBegin and Finish are around each run of the graph. sync is true where the
	// gradients of this run and those since the last such one are to be reduced. Then
	// they are, in place, when Finish returns.
	StepBegin(sync bool) error
	// Ready says that the gradient of variable i is complete.
	Ready(i int)
	Finish(ctx context.Context) error
}

// Run runs the graph on m, in RunAll's place, and reduces the gradients of this run
// and of those that Accumulate made before. When it returns, Grad of every parameter
// is the reduced gradient, the same bits on all ranks. Every rank calls it as often
// as the others; ctx bounds the waits for them.
//
// Within the graph a gradient is the rank's own: what reads it there, as a Read does,
// sees it not reduced. m may be a machine that binds dual values.
//
// Where the graph fails on a rank, the others' Run fails too, or their next one.
func (t *Taps) Run(ctx context.Context, m G.VM, r Reducer) error {
	if err := t.pass(ctx, m, r, true); err != nil {
		return err
	}
	for _, x := range t.list {
		if err := x.bind(); err != nil {
			return fmt.Errorf("gorgonia: the reduced gradient of %s: %w", x.param.Name, err)
		}
	}
	return nil
}

// Accumulate runs the graph on m and keeps the gradients on this rank, to be added to
// those of the next Run. What Grad gives until then is of no use. It does not
// communicate.
func (t *Taps) Accumulate(ctx context.Context, m G.VM, r Reducer) error {
	return t.pass(ctx, m, r, false)
}

// pass is one micro-step.
func (t *Taps) pass(ctx context.Context, m G.VM, r Reducer, sync bool) error {
	if !t.derived {
		return errors.New("gorgonia: nobody has taken the gradients: call Grad of the taps before a machine is made")
	}
	for _, x := range t.list {
		if err := x.stays(); err != nil {
			return err
		}
	}
	if err := r.StepBegin(sync); err != nil {
		return err
	}
	if err := t.run(m, func(i int) error { r.Ready(i); return nil }); err != nil {
		// Finish misses gradients, and ends the group.
		return errors.Join(err, r.Finish(ctx))
	}
	return r.Finish(ctx)
}

// run runs m with hooks that call ready.
func (t *Taps) run(m G.VM, ready func(i int) error) error {
	t.ready = ready
	defer func() { t.ready = nil }()
	if err := m.RunAll(); err != nil {
		return fmt.Errorf("gorgonia: %w", err)
	}
	return nil
}

// complete makes sure that no derivative goes past a tap.
func (t *Taps) complete() error {
	if len(t.list) == 0 {
		return errors.New("gorgonia: no parameter is tapped")
	}
	for _, x := range t.list {
		for users := x.of.Graph().To(x.of.ID()); users.Next(); {
			user := users.Node().(*G.Node)
			if _, differentiable := user.Op().(G.SDOp); differentiable && user != x.node {
				return fmt.Errorf("gorgonia: %s is used by %s itself, whose gradient would be missed: use what On returns everywhere", x.param.Name, user.Op())
			}
		}
	}
	return nil
}

// flat is all of v's memory, of one dimension. Its type is one of typeOf.
func flat(v *gt.Dense) tensor.Tensor {
	switch data := v.Data().(type) {
	case []float32:
		return tensor.New(device.Of(data), dtype.F32, len(data))
	case []float64:
		return tensor.New(device.Of(data), dtype.F64, len(data))
	}
	panic("gorgonia: memory of " + v.Dtype().String())
}
