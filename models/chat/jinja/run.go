package jinja

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxCalls bounds how deep macros call each other. With maxNesting it bounds the
// stack of a render.
const maxCalls = 100

// run is one render. Its frames share it.
type run struct {
	t     *Template
	now   func() time.Time
	left  Limits
	calls int // macros entered and not left
	main  strings.Builder
	spans []Span
}

// frame is where a statement or an expression is evaluated: what names mean
// there, and where text goes.
type frame struct {
	*run
	names *scope
	out   *strings.Builder
}

// scope is what names mean within a block that keeps its own: a loop's turn, a
// macro's call, a captured block.
type scope struct {
	names map[string]Value
	outer *scope
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.names[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.names == nil {
		s.names = map[string]Value{}
	}
	s.names[name] = v
}

// inner is a frame with names of its own that writes to out.
func (f *frame) inner(out *strings.Builder) *frame {
	return &frame{run: f.run, names: &scope{outer: f.names}, out: out}
}

// step counts n elements touched.
func (r *run) step(n int) error {
	if r.left.Steps -= n; r.left.Steps < 0 {
		r.left.Steps = -1
		return fmt.Errorf("%w: its steps are used up; does it loop too often?", ErrLimit)
	}
	return nil
}

// bytes counts n bytes of text made.
func (r *run) bytes(n int) error {
	if r.left.Bytes -= n; r.left.Bytes < 0 || n < 0 {
		r.left.Bytes = -1
		return fmt.Errorf("%w: the text that it may make is used up", ErrLimit)
	}
	return nil
}

// made counts a text and gives it back.
func (r *run) made(s string) (Value, error) { return s, r.bytes(len(s)) }

func (f *frame) write(s string) error {
	if err := f.bytes(len(s)); err != nil {
		return err
	}
	f.out.WriteString(s)
	return nil
}

// flow says how a statement ended.
type flow int

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

// block runs statements up to a break or continue.
func (f *frame) block(body []stmt) (flow, error) {
	for _, s := range body {
		err := f.step(1)
		var how flow
		if err == nil {
			how, err = s.exec(f)
		}
		if err != nil {
			return flowOn, f.t.errorAt(s.offset(), err)
		}
		if how != flowOn {
			return how, nil
		}
	}
	return flowOn, nil
}

// capture is the text that body writes, with names of its own.
func (f *frame) capture(body []stmt) (string, error) {
	var out strings.Builder
	_, err := f.inner(&out).block(body)
	return out.String(), err
}

// value evaluates e.
func (f *frame) value(e expr) (Value, error) {
	err := f.step(1)
	var v Value
	if err == nil {
		v, err = e.eval(f)
	}
	if err != nil {
		return nil, f.t.errorAt(e.offset(), err)
	}
	return v, nil
}

func (f *frame) values(of []expr) ([]Value, error) {
	vs := make([]Value, len(of))
	for i, e := range of {
		v, err := f.value(e)
		if err != nil {
			return nil, err
		}
		vs[i] = v
	}
	return vs, nil
}

// iterate goes through the elements of v. An undefined value has none.
func (f *frame) iterate(v Value) (iterator, error) {
	switch v := plainText(v).(type) {
	case undefined:
		return over(nil), nil
	case string:
		return func() (Value, bool, error) {
			if v == "" {
				return nil, false, nil
			}
			_, n := utf8.DecodeRuneInString(v)
			c := v[:n]
			v = v[n:]
			return c, true, f.step(1)
		}, nil
	case List:
		return over(v), nil
	case Tuple:
		return over(v), nil
	case *Dict:
		return over(v.keys), nil
	case *view:
		return over(v.items), nil
	case *stream:
		return v.next, nil
	}
	return nil, fmt.Errorf("%s has no elements to go through", typeName(v))
}

func over(items []Value) iterator {
	i := 0
	return func() (Value, bool, error) {
		if i == len(items) {
			return nil, false, nil
		}
		i++
		return items[i-1], true, nil
	}
}

// all are the elements of v.
func (f *frame) all(v Value) (List, error) {
	next, err := f.iterate(v)
	if err != nil {
		return nil, err
	}
	return f.drain(next)
}

func (f *frame) drain(next iterator) (List, error) {
	items := List{}
	for {
		v, ok, err := next()
		if err != nil || !ok {
			return items, err
		}
		if err := f.step(1); err != nil {
			return nil, err
		}
		items = append(items, v)
	}
}
