package gorgonia

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// tap is one parameter of a graph: the operation behind it, and the hook on its
// gradient.
type tap struct {
	taps   *Taps
	at     int // in the list of taps
	param  *param.Param
	of     *G.Node       // the parameter
	weight tensor.Tensor // its value, since Vars has told of it
	node   *G.Node       // what the graph uses in its place
	copy   tensor.Tensor // of the parameter, the value of node
	grad   tensor.Tensor // the gradient, the value of the hook
}

// value is the memory of the parameter's value.
func (x *tap) value() (tensor.Tensor, error) {
	v, err := dense(x.of.Value())
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("gorgonia: the value of %s: %w", x.param.Name, err)
	}
	return flat(v).Reshape(x.param.Shape...), nil
}

// stays returns an error where the value has moved since Vars.
func (x *tap) stays() error {
	if x.weight.None() {
		return nil
	}
	v, err := x.value()
	if err == nil && v.Buf.Addr() != x.weight.Buf.Addr() {
		err = fmt.Errorf("gorgonia: %s has got a value in other memory since Vars: copy new values into the old one", x.param.Name)
	}
	return err
}

// see makes a value of memory that the tap keeps, anew each time: the tape reshapes
// and transposes values in place.
func see(t tensor.Tensor) *gt.Dense {
	if t.DType == dtype.F64 {
		return gt.New(gt.WithShape(t.Shape...), gt.WithBacking(t.F64()))
	}
	return gt.New(gt.WithShape(t.Shape...), gt.WithBacking(t.F32()))
}

// identity is what the operations here have in common. name is a part of the hash: the
// tape takes nodes of one hash for one node, and two biases may have one gradient.
type identity struct{ name string }

func (identity) Arity() int { return 1 }
func (identity) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a)
}
func (identity) InferShape(in ...G.DimSizer) (gt.Shape, error) {
	shape, ok := in[0].(gt.Shape)
	if !ok {
		return nil, fmt.Errorf("a shape is wanted, not %T", in[0])
	}
	return shape.Clone(), nil
}
func (identity) ReturnsPtr() bool        { return true }
func (identity) CallsExtern() bool       { return false }
func (identity) OverwritesInput() int    { return -1 }
func (o identity) WriteHash(h hash.Hash) { h.Write([]byte(o.name)) } // a hash never fails
func (o identity) Hashcode() uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}
func (o identity) String() string { return o.name }

// copyOp copies its input to memory that is not the tape's.
type copyOp struct {
	identity
	to tensor.Tensor
}

func (o copyOp) Do(in ...G.Value) (G.Value, error) {
	mine := see(o.to)
	v, err := dense(in[0])
	if err == nil {
		err = gt.Copy(mine, v)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, err)
	}
	return mine, nil
}

// tapOp gives the graph a copy of a parameter.
type tapOp struct {
	copyOp
	tap *tap
}

func (o tapOp) DiffWRT(int) []bool { return []bool{true} }

// SymDiff is the parameter's gradient: the hook on that of the copy.
func (o tapOp) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	n, err := G.ApplyOp(hookOp{identity{"hook on the gradient of " + o.tap.param.Name}, o.tap}, grad)
	if err != nil {
		return nil, err
	}
	return G.Nodes{n}, nil
}

// DoDiff is how a LispMachine differentiates. Without it, it would silently take
// nothing for the gradient.
func (o tapOp) DoDiff(G.ExecutionContext, G.Nodes, *G.Node) error {
	return errors.New("gorgonia: a LispMachine runs a graph once only, whatever Reset says: take the derivatives by Grad and run the graph on a TapeMachine")
}

// hookOp keeps a gradient, and says that it is ready.
type hookOp struct {
	identity
	tap *tap
}

func (o hookOp) Do(in ...G.Value) (G.Value, error) {
	mine := see(o.tap.grad)
	v, err := dense(in[0])
	if err == nil && !v.Shape().Eq(mine.Shape()) {
		err = fmt.Errorf("it has shape %v, the parameter %v", v.Shape(), mine.Shape())
	}
	if err == nil {
		err = gt.Copy(mine, v)
	}
	if ready := o.tap.taps.ready; err == nil && ready != nil {
		err = ready(o.tap.at)
	}
	if err != nil {
		return nil, fmt.Errorf("the gradient of %s: %w", o.tap.param.Name, err)
	}
	return mine, nil
}

// endOp is behind the whole backward pass, and hands on what a hook gives. That it
// takes the tap's copy too keeps the tape from writing over that before: what a
// Reshape gives shares its memory, unknown to the tape, and may be read later than the
// copy itself. Parameters, which the copy stands for, are never written over.
type endOp struct{ identity }

func (endOp) Arity() int { return 2 }
func (endOp) Type() hm.Type {
	a := hm.TypeVariable('a')
	return hm.NewFnType(a, a, a)
}
func (endOp) Do(in ...G.Value) (G.Value, error) { return in[0], nil }

// bind brings the gradient to where Grad finds it: a machine that binds dual values
// adds up in memory of its own.
func (x *tap) bind() error {
	v, err := x.of.Grad()
	if err != nil {
		return err
	}
	bound, err := dense(v)
	if err != nil || flat(bound).Buf.Addr() == x.grad.Buf.Addr() {
		return err
	}
	return gt.Copy(bound, see(x.grad))
}

// dense is v as the only kind of value that a parameter and its gradient may have.
func dense(v G.Value) (*gt.Dense, error) {
	d, ok := v.(*gt.Dense)
	if !ok {
		return nil, fmt.Errorf("a dense tensor is wanted, not %T; a scalar may be a vector of one element", v)
	}
	return d, nil
}

func typeOf(v *gt.Dense) (dtype.DType, error) {
	switch v.Dtype() {
	case gt.Float32:
		return dtype.F32, nil
	case gt.Float64:
		return dtype.F64, nil
	}
	return dtype.Invalid, fmt.Errorf("it is of type %v: float32 and float64 are what gradients are taken of", v.Dtype())
}
