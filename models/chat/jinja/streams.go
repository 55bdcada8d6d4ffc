package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// path follows the names or numbers in by, with dots between them, from v. Where
// the way ends in what is not there it gives otherwise, unless that is missing.
func (f *frame) path(v, by, otherwise Value) (Value, error) {
	steps := []Value{by}
	if s, ok := by.(string); ok {
		steps = nil
		for step := range strings.SplitSeq(s, ".") {
			if i, err := strconv.ParseInt(step, 10, 64); err == nil && isDigit(step[0]) {
				steps = append(steps, i)
			} else {
				steps = append(steps, step)
			}
		}
	}
	for _, step := range steps {
		err := f.step(1)
		if err == nil {
			v, err = f.element(v, step)
		}
		if err != nil {
			return nil, err
		}
		if isUndefined(v) && otherwise != missing {
			v = otherwise
		}
	}
	return v, nil
}

// mapFilter gives a stream of what a filter, or an attribute, makes of each
// element.
func mapFilter(f *frame, v Value, a arguments) (Value, error) {
	next := f.lazily(v)
	if len(a.positional) == 0 {
		given, err := a.bind(0, "attribute", "default")
		if err != nil {
			return nil, err
		}
		if given[0] == missing {
			return nil, errors.New("the name of a filter or an attribute is missing")
		}
		if given[1] == nil {
			given[1] = missing
		}
		return f.mapped(next, func(v Value) (Value, error) { return f.path(v, given[0], given[1]) }), nil
	}
	name, ok := a.positional[0].(string)
	if _, known := filters[name]; !ok || !known {
		return nil, fmt.Errorf("%w: map with filter %v", ErrUnsupported, a.positional[0])
	}
	rest := arguments{a.positional[1:], a.named}
	return f.mapped(next, func(v Value) (Value, error) { return f.filter(name, v, rest) }), nil
}

// lazily goes through the elements of v. What is false has none; what else has none
// is an error when the first is asked for.
func (f *frame) lazily(v Value) iterator {
	if !truth(v) {
		return over(nil)
	}
	var next iterator
	return func() (Value, bool, error) {
		if next == nil {
			var err error
			if next, err = f.iterate(v); err != nil {
				return nil, false, err
			}
		}
		return next()
	}
}

func (f *frame) mapped(next iterator, change func(Value) (Value, error)) *stream {
	return &stream{func() (Value, bool, error) {
		v, ok, err := next()
		if err != nil || !ok {
			return nil, false, err
		}
		if err := f.step(1); err != nil {
			return nil, false, err
		}
		v, err = change(v)
		return v, err == nil, err
	}}
}

// choosing is the filter that gives a stream of the elements that pass a test, or
// do not: tested are the elements, or an attribute of each. Without a test they
// are taken as true or false.
func choosing(want, attribute bool) filter {
	return func(f *frame, v Value, a arguments) (Value, error) {
		next := f.lazily(v)
		tested := func(v Value) (Value, error) { return v, nil }
		if attribute {
			if len(a.positional) == 0 {
				return nil, errors.New("the name of an attribute is missing")
			}
			by := a.positional[0]
			a.positional = a.positional[1:]
			tested = func(v Value) (Value, error) { return f.path(v, by, missing) }
		}
		passes := func(v Value) (bool, error) { return truth(v), nil }
		if len(a.positional) > 0 {
			name, ok := a.positional[0].(string)
			if _, known := tests[name]; !ok || !known {
				return nil, fmt.Errorf("%w: test %v", ErrUnsupported, a.positional[0])
			}
			rest := arguments{a.positional[1:], a.named}
			passes = func(v Value) (bool, error) { return f.test(name, v, rest) }
		} else if len(a.named) > 0 {
			return nil, fmt.Errorf("there is no argument %s", a.named[0].name)
		}
		return &stream{func() (Value, bool, error) {
			for {
				item, ok, err := next()
				if err == nil {
					err = f.step(1)
				}
				if err != nil || !ok {
					return nil, false, err
				}
				v, err := tested(item)
				if err != nil {
					return nil, false, err
				}
				pass, err := passes(v)
				if err != nil {
					return nil, false, err
				}
				if pass == want {
					return item, true, nil
				}
			}
		}}, nil
	}
}
