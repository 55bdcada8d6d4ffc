package cudnn

import (
	"errors"
	"fmt"
)

// builder makes the descriptors that a plan is made from. The plan outlives them.
type builder struct {
	s    *session
	made []desc
}

// setting is an attribute and its elements.
type setting struct {
	attr   attribute
	values []int64
}

func to(a attribute, values ...int64) setting { return setting{a, values} }

// create is an empty descriptor that lives until free.
func (b *builder) create(k kind) (desc, error) {
	d, err := b.s.create(k)
	if err == nil {
		b.made = append(b.made, d)
	}
	return d, err
}

// make is a finished descriptor, whose attributes are set in the given order.
func (b *builder) make(k kind, settings ...setting) (desc, error) {
	d, err := b.create(k)
	if err != nil {
		return d, err
	}
	if err := b.s.aim(d); err != nil {
		return d, err
	}
	for _, s := range settings {
		if err := b.s.set(d, s.attr, s.values...); err != nil {
			return d, err
		}
	}
	return d, b.s.finalize(d)
}

// free destroys all, the latest first.
func (b *builder) free() error {
	var errs []error
	for i := len(b.made) - 1; i >= 0; i-- {
		errs = append(errs, b.s.destroy(b.made[i]))
	}
	b.made = nil
	return errors.Join(errs...)
}

// graph describes g to the library. An error names the tensor or the operation.
func (b *builder) graph(g *graph) (desc, error) {
	tensors := map[string]int64{} // descriptors by name
	for i, t := range g.tensors {
		d, err := b.tensor(int64(i+1), t)
		if err != nil {
			return d, fmt.Errorf("tensor %s: %w", t.name, err)
		}
		tensors[t.name] = int64(d.addr)
	}
	var ops []int64
	for i, o := range g.ops {
		d, err := b.op(o, tensors)
		if err != nil {
			return d, fmt.Errorf("operation %d, %s: %w", i+1, o.code.name, err)
		}
		ops = append(ops, int64(d.addr))
	}
	return b.make(kindGraph, to(attrGraphOps, ops...))
}

func (b *builder) tensor(id int64, t tensorDesc) (desc, error) {
	settings := []setting{
		to(attrTensorType, t.dtype.number),
		to(attrTensorDims, t.dims[:]...),
		to(attrTensorStrides, t.strides[:]...),
		to(attrTensorID, id),
		to(attrTensorAlignment, alignment),
	}
	switch t.role {
	case virtual:
		settings = append(settings, to(attrTensorVirtual, 1))
	case scalar:
		settings = append(settings, to(attrTensorByValue, 1))
	}
	return b.make(kindTensor, settings...)
}

// op makes the descriptor of the operation's class and then that of the operation.
func (b *builder) op(o op, tensors map[string]int64) (desc, error) {
	at := func(name string) int64 {
		d, ok := tensors[name]
		if !ok {
			panic(fmt.Sprintf("cudnn: %v uses %q, which is no tensor of the graph", o, name))
		}
		return d
	}
	switch o.code.class {
	case classMatmul:
		of, err := b.make(kindMatmul, to(attrMatmulPrec, o.prec.number))
		if err != nil {
			return of, err
		}
		return b.make(kindMatmulOp, to(attrMatmulOpA, at(o.x)), to(attrMatmulOpB, at(o.b)), to(attrMatmulOpC, at(o.y)),
			to(attrMatmulOpDesc, int64(of.addr)))
	case classReduction:
		of, err := b.make(kindReduction, to(attrReductionPrec, o.prec.number), to(attrReductionMode, o.code.number))
		if err != nil {
			return of, err
		}
		return b.make(kindReductionOp, to(attrReductionOpDesc, int64(of.addr)), to(attrReductionOpX, at(o.x)), to(attrReductionOpY, at(o.y)))
	case classReshape:
		return b.make(kindReshapeOp, to(attrReshapeOpX, at(o.x)), to(attrReshapeOpY, at(o.y)))
	}
	mode := []setting{to(attrPointwiseMode, o.code.number), to(attrPointwisePrec, o.prec.number)}
	if o.code.axis != 0 {
		mode = append(mode, to(attrPointwiseAxis, o.code.axis))
	}
	of, err := b.make(kindPointwise, mode...)
	if err != nil {
		return of, err
	}
	settings := []setting{to(attrPointwiseOpDesc, int64(of.addr)), to(attrPointwiseOpX, at(o.x)), to(attrPointwiseOpY, at(o.y))}
	if o.b != "" {
		settings = append(settings, to(attrPointwiseOpB, at(o.b)))
	}
	if o.t != "" {
		settings = append(settings, to(attrPointwiseOpT, at(o.t)))
	}
	return b.make(kindPointwiseOp, settings...)
}

// configs asks for the ways to compute a graph, the supposedly fastest first.
func (b *builder) configs(graph desc, mode int64) ([]desc, error) {
	h, err := b.make(kindHeuristic, to(attrHeuristicGraph, int64(graph.addr)), to(attrHeuristicMode, mode))
	if err != nil {
		return nil, err
	}
	n, err := b.s.get(h, attrHeuristicResults, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	// The library fills descriptors that exist; they count as finalized then.
	configs, addrs := make([]desc, n), make([]int64, n)
	for i := range configs {
		if configs[i], err = b.create(kindConfig); err != nil {
			return nil, err
		}
		addrs[i] = int64(configs[i].addr)
	}
	n, err = b.s.get(h, attrHeuristicResults, addrs)
	return configs[:min(n, len(configs))], err
}
