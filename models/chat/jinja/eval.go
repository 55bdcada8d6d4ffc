package jinja

import (
	"fmt"
	"strings"
)

func (c *constant) eval(*frame) (Value, error) { return c.value, nil }

func (n *name) eval(f *frame) (Value, error) {
	if v, ok := f.names.get(n.name); ok {
		return v, nil
	}
	return undefined{n.name + " is undefined"}, nil
}

func (l *listExpr) eval(f *frame) (Value, error) {
	items, err := f.values(l.items)
	return List(items), err
}

func (t *tupleExpr) eval(f *frame) (Value, error) {
	items, err := f.values(t.items)
	return Tuple(items), err
}

func (d *dictExpr) eval(f *frame) (Value, error) {
	made := &Dict{}
	for i := range d.keys {
		key, err := f.value(d.keys[i])
		if err != nil {
			return nil, err
		}
		v, err := f.value(d.values[i])
		if err != nil {
			return nil, err
		}
		hash, err := hashable(key)
		if err != nil {
			return nil, err
		}
		made.set(hash, key, v)
	}
	return made, nil
}

func (c *call) eval(f *frame) (Value, error) {
	of, err := f.value(c.of)
	if err != nil {
		return nil, err
	}
	a, err := c.args.eval(f)
	if err != nil {
		return nil, err
	}
	switch fn := of.(type) {
	case *function:
		return fn.call(f, a)
	case undefined:
		return nil, fn.fails()
	}
	return nil, fmt.Errorf("%s can't be called", typeName(of))
}

func (a *args) eval(f *frame) (arguments, error) {
	positional, err := f.values(a.positional)
	if err != nil {
		return arguments{}, err
	}
	vs := arguments{positional: positional}
	for _, n := range a.named {
		v, err := f.value(n.value)
		if err != nil {
			return arguments{}, err
		}
		vs.named = append(vs.named, namedValue{n.name, v})
	}
	return vs, nil
}

func (e *filterExpr) eval(f *frame) (Value, error) {
	of, err := f.value(e.of)
	if err != nil {
		return nil, err
	}
	a, err := e.args.eval(f)
	if err != nil {
		return nil, err
	}
	return f.filter(e.name, of, a)
}

func (e *testExpr) eval(f *frame) (Value, error) {
	of, err := f.value(e.of)
	if err != nil {
		return nil, err
	}
	a, err := e.args.eval(f)
	if err != nil {
		return nil, err
	}
	return f.test(e.name, of, a)
}

func (n *not) eval(f *frame) (Value, error) {
	v, err := f.value(n.of)
	return !truth(v), err
}

func (l *logic) eval(f *frame) (Value, error) {
	v, err := f.value(l.left)
	if err != nil || truth(v) == l.or {
		return v, err
	}
	return f.value(l.right)
}

func (c *choice) eval(f *frame) (Value, error) {
	v, err := f.value(c.test)
	if err != nil {
		return nil, err
	}
	if truth(v) {
		return f.value(c.yes)
	}
	if c.no == nil {
		return undefined{"this choice has no else, and its condition does not hold"}, nil
	}
	return f.value(c.no)
}

func (j *joined) eval(f *frame) (Value, error) {
	var b strings.Builder
	for _, part := range j.parts {
		v, err := f.value(part)
		if err != nil {
			return nil, err
		}
		text, err := f.text(v)
		if err != nil {
			return nil, err
		}
		if err := f.bytes(len(text)); err != nil {
			return nil, err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func (c *comparison) eval(f *frame) (Value, error) {
	left, err := f.value(c.left)
	if err != nil {
		return nil, err
	}
	for _, o := range c.rest {
		right, err := f.value(o.value)
		if err != nil {
			return nil, err
		}
		holds, err := f.compare(o.op, left, right)
		if !holds || err != nil {
			return false, err
		}
		left = right
	}
	return true, nil
}
