package jinja

import (
	"errors"
	"fmt"
	"strings"
)

func (s *textStmt) exec(f *frame) (flow, error) { return flowOn, f.write(s.text) }

func (s *printStmt) exec(f *frame) (flow, error) {
	v, err := f.value(s.value)
	if err != nil {
		return flowOn, err
	}
	text, err := f.text(v)
	if err != nil {
		return flowOn, err
	}
	return flowOn, f.write(text)
}

func (s *ifStmt) exec(f *frame) (flow, error) {
	for _, b := range s.branches {
		v, err := f.value(b.test)
		if err != nil {
			return flowOn, err
		}
		if truth(v) {
			return f.block(b.body)
		}
	}
	return f.block(s.otherwise)
}

func (s *setStmt) exec(f *frame) (flow, error) {
	v, err := f.value(s.value)
	if err != nil {
		return flowOn, err
	}
	return flowOn, s.target.assign(f, v)
}

func (s *setBlock) exec(f *frame) (flow, error) {
	text, err := f.capture(s.body)
	if err != nil {
		return flowOn, err
	}
	var v Value = text
	if s.filter != nil {
		in := f.inner(nil)
		in.names.set(blockName, text)
		if v, err = in.value(s.filter); err != nil {
			return flowOn, err
		}
	}
	return flowOn, s.target.assign(f, v)
}

// blockName is the name of a set block's text within its filter: none that a
// template can write.
const blockName = "{% set %}"

func (*blockText) eval(f *frame) (Value, error) {
	v, _ := f.names.get(blockName)
	return v, nil
}

// exec notes where the block's text lies. Its names are its own.
func (s *generationStmt) exec(f *frame) (flow, error) {
	start := f.out.Len()
	if _, err := f.inner(f.out).block(s.body); err != nil {
		return flowOn, err
	}
	if end := f.out.Len(); f.out == &f.main && end > start {
		f.spans = append(f.spans, Span{start, end})
	}
	return flowOn, nil
}

func (s *flowStmt) exec(*frame) (flow, error) { return s.flow, nil }

// assign sets a name in the innermost scope.
func (n *name) assign(f *frame, v Value) error {
	f.names.set(n.name, v)
	return nil
}

func (t *tupleTarget) assign(f *frame, v Value) error {
	items, err := f.all(v)
	if err != nil {
		return err
	}
	if len(items) != len(t.items) {
		return fmt.Errorf("%d names for %d values", len(t.items), len(items))
	}
	for i, item := range t.items {
		if err := item.assign(f, items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *namespaceTarget) assign(f *frame, v Value) error {
	of, _ := f.names.get(t.namespace)
	ns, ok := of.(*namespace)
	if !ok {
		return fmt.Errorf("%s is no namespace: only a namespace's names can be set", t.namespace)
	}
	ns.names.Set(t.name, v)
	return nil
}

// exec defines the macro. It sees the names around its definition as they are
// when it is called.
func (s *macroStmt) exec(f *frame) (flow, error) {
	around := f.names
	f.names.set(s.name, &function{name: s.name, call: func(f *frame, a arguments) (Value, error) {
		if f.calls++; f.calls > maxCalls {
			return nil, fmt.Errorf("%w: macros call each other more than %d deep", ErrLimit, maxCalls)
		}
		defer func() { f.calls-- }()
		var out strings.Builder
		in := &frame{run: f.run, names: &scope{outer: around}, out: &out}
		if err := s.bind(in, a); err != nil {
			return nil, err
		}
		_, err := in.block(s.body)
		return out.String(), err
	}})
	return flowOn, nil
}

// bind sets the macro's parameters in the frame of its call.
func (s *macroStmt) bind(f *frame, a arguments) error {
	names := make([]string, len(s.params))
	for i, p := range s.params {
		names[i] = p.name
	}
	values, err := a.bind(0, names...)
	if err != nil {
		return fmt.Errorf("macro %s: %w", s.name, err)
	}
	for i, p := range s.params {
		v := values[i]
		switch {
		case v != missing:
		case p.value == nil:
			v = undefined{fmt.Sprintf("parameter %s of macro %s was not given", p.name, s.name)}
		default:
			if v, err = f.value(p.value); err != nil {
				return err
			}
		}
		f.names.set(p.name, v)
	}
	return nil
}

// arguments are the values of a call.
type arguments struct {
	positional []Value
	named      []namedValue
}

type namedValue struct {
	name  string
	value Value
}

// missing stands for an argument that was not given.
var missing Value = &struct{ byte }{}

// bind lays the arguments out in the order of names; the first of them, required
// in number, must be given.
func (a arguments) bind(required int, names ...string) ([]Value, error) {
	if len(a.positional) > len(names) {
		return nil, fmt.Errorf("%d arguments: at most %d are taken", len(a.positional), len(names))
	}
	values := make([]Value, len(names))
	for i := range values {
		values[i] = missing
	}
	copy(values, a.positional)
named:
	for _, n := range a.named {
		for i, name := range names {
			if name != n.name {
				continue
			}
			if values[i] != missing {
				return nil, fmt.Errorf("argument %s is given twice", name)
			}
			values[i] = n.value
			continue named
		}
		return nil, fmt.Errorf("there is no argument %s", n.name)
	}
	for i := range required {
		if values[i] == missing {
			return nil, fmt.Errorf("argument %s is missing", names[i])
		}
	}
	return values, nil
}

// none fails where there are arguments.
func (a arguments) none() error {
	if len(a.positional)+len(a.named) > 0 {
		return errors.New("no arguments are taken")
	}
	return nil
}
