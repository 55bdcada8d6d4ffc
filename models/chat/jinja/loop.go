package jinja

import (
	"errors"
	"fmt"
)

// loop is what the name loop means within a for: it takes the elements one after
// the other, and ahead of time only where a template asks for what comes.
type loop struct {
	f       *frame
	next    iterator
	size    int // of the elements; -1: not known yet
	index   int // of the current element, from 0
	before  Value
	current Value
	ahead   Value // taken ahead, or missing
	changed Value // what changed() saw last, or missing
}

func (f *frame) loop(items Value) (*loop, error) {
	next, err := f.iterate(items)
	l := &loop{f: f, next: next, size: -1, index: -1, ahead: missing, changed: missing}
	if n, ok := length(items); ok {
		l.size = n
	}
	return l, err
}

// advance takes the next element.
func (l *loop) advance() (bool, error) {
	v, err := l.peek()
	if err != nil || v == missing {
		return false, err
	}
	l.index++
	l.before, l.current, l.ahead = l.current, v, missing
	return true, nil
}

// peek is the element behind the current one, or missing.
func (l *loop) peek() (Value, error) {
	if l.ahead != missing {
		return l.ahead, nil
	}
	v, ok, err := l.next()
	if err != nil || !ok {
		return missing, err
	}
	l.ahead = v
	return v, nil
}

// length takes all elements where their number is not known otherwise.
func (l *loop) length() (int, error) {
	if l.size >= 0 {
		return l.size, nil
	}
	rest, err := l.f.drain(l.next)
	if err != nil {
		return 0, err
	}
	l.next = over(rest)
	l.size = l.index + 1 + len(rest)
	if l.ahead != missing {
		l.size++
	}
	return l.size, nil
}

func (l *loop) attribute(name string) (Value, error) {
	switch name {
	case "index":
		return int64(l.index + 1), nil
	case "index0":
		return int64(l.index), nil
	case "first":
		return l.index == 0, nil
	case "depth":
		return int64(1), nil
	case "depth0":
		return int64(0), nil
	case "last":
		v, err := l.peek()
		return v == missing, err
	case "previtem":
		if l.index == 0 {
			return undefined{"the first item of a loop has none before it"}, nil
		}
		return l.before, nil
	case "nextitem":
		v, err := l.peek()
		if v == missing {
			return undefined{"the last item of a loop has none behind it"}, err
		}
		return v, err
	case "length", "revindex", "revindex0":
		n, err := l.length()
		switch name {
		case "revindex":
			n -= l.index
		case "revindex0":
			n -= l.index + 1
		}
		return int64(n), err
	case "cycle":
		return &function{name, l.cycle}, nil
	case "changed":
		return &function{name, l.change}, nil
	}
	return undefined{fmt.Sprintf("loop has no attribute %s", name)}, nil
}

func (l *loop) cycle(_ *frame, a arguments) (Value, error) {
	if len(a.named) > 0 || len(a.positional) == 0 {
		return nil, errors.New("loop.cycle needs values, without names")
	}
	return a.positional[l.index%len(a.positional)], nil
}

func (l *loop) change(f *frame, a arguments) (Value, error) {
	if len(a.named) > 0 {
		return nil, errors.New("loop.changed takes values without names")
	}
	now := Tuple(a.positional)
	if l.changed != missing {
		same, err := f.equal(l.changed, now)
		if same || err != nil {
			return false, err
		}
	}
	l.changed = now
	return true, nil
}

// exec runs the body once for each element, each time with names of its own. As
// in Jinja, else also runs where no turn of the loop came to its end: where each
// was left with break or continue.
func (s *forStmt) exec(f *frame) (flow, error) {
	items, err := f.value(s.items)
	if err != nil {
		return flowOn, err
	}
	if s.test != nil {
		if items, err = s.filtered(f, items); err != nil {
			return flowOn, err
		}
	}
	l, err := f.loop(items)
	if err != nil {
		return flowOn, err
	}
	ended := false
	for {
		more, err := l.advance()
		if err == nil {
			err = f.step(1)
		}
		if err != nil {
			return flowOn, err
		}
		if !more {
			break
		}
		in := f.inner(f.out)
		in.names.set("loop", l)
		if err := s.target.assign(in, l.current); err != nil {
			return flowOn, err
		}
		how, err := in.block(s.body)
		if err != nil {
			return flowOn, err
		}
		if how == flowBreak {
			break
		}
		ended = ended || how == flowOn
	}
	if ended {
		return flowOn, nil
	}
	return f.inner(f.out).block(s.otherwise)
}

// filtered are the items for which the loop's test holds. Each is tested when it
// is its turn.
func (s *forStmt) filtered(f *frame, items Value) (Value, error) {
	next, err := f.iterate(items)
	if err != nil {
		return nil, err
	}
	return &stream{func() (Value, bool, error) {
		for {
			v, ok, err := next()
			if err != nil || !ok {
				return nil, false, err
			}
			in := f.inner(f.out)
			if err := s.target.assign(in, v); err != nil {
				return nil, false, err
			}
			hold, err := in.value(s.test)
			if err != nil {
				return nil, false, err
			}
			if truth(hold) {
				return v, true, nil
			}
		}
	}}, nil
}
