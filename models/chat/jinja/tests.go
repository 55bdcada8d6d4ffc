package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// tests are what may stand behind "is". Each has at most one argument, other; one
// says that it has it.
var tests = map[string]struct {
	one   bool
	holds func(f *frame, v, other Value) (bool, error)
}{
	"defined":     {false, plain(func(v Value) bool { return !isUndefined(v) })},
	"undefined":   {false, plain(isUndefined)},
	"none":        {false, plain(func(v Value) bool { return v == nil })},
	"true":        {false, plain(func(v Value) bool { b, ok := v.(bool); return ok && b })},
	"false":       {false, plain(func(v Value) bool { b, ok := v.(bool); return ok && !b })},
	"boolean":     {false, plain(is[bool])},
	"integer":     {false, plain(is[int64])},
	"float":       {false, plain(is[float64])},
	"number":      {false, plain(func(v Value) bool { _, ok := number(v); return ok })},
	"string":      {false, plain(func(v Value) bool { return is[string](plainText(v)) })},
	"mapping":     {false, plain(is[*Dict])},
	"callable":    {false, plain(func(v Value) bool { return is[*function](v) || isUndefined(v) })},
	"iterable":    {false, plain(iterable)},
	"sequence":    {false, plain(isSequence)},
	"lower":       {false, lowerTest},
	"upper":       {false, upperTest},
	"odd":         {false, remainder(1)},
	"even":        {false, remainder(0)},
	"divisibleby": {true, divisible},
	"sameas":      {true, sameAs},
	"in":          {true, comparing("in")},
	"eq":          {true, comparing("==")}, "equalto": {true, comparing("==")}, "==": {true, comparing("==")},
	"ne": {true, comparing("!=")}, "!=": {true, comparing("!=")},
	"lt": {true, comparing("<")}, "lessthan": {true, comparing("<")}, "<": {true, comparing("<")},
	"le": {true, comparing("<=")}, "<=": {true, comparing("<=")},
	"gt": {true, comparing(">")}, "greaterthan": {true, comparing(">")}, ">": {true, comparing(">")},
	"ge": {true, comparing(">=")}, ">=": {true, comparing(">=")},
}

// test says whether v passes the test of that name.
func (f *frame) test(name string, v Value, a arguments) (bool, error) {
	t, ok := tests[name]
	if !ok {
		return false, fmt.Errorf("%w: test %s", ErrUnsupported, name)
	}
	if !t.one {
		if err := a.none(); err != nil {
			return false, fmt.Errorf("test %s: %w", name, err)
		}
		return t.holds(f, v, nil)
	}
	if len(a.positional) != 1 || len(a.named) > 0 {
		return false, fmt.Errorf("test %s needs one argument, without a name", name)
	}
	return t.holds(f, v, a.positional[0])
}

func plain(holds func(Value) bool) func(*frame, Value, Value) (bool, error) {
	return func(_ *frame, v, _ Value) (bool, error) { return holds(v), nil }
}

func is[T any](v Value) bool {
	_, ok := v.(T)
	return ok
}

func isUndefined(v Value) bool { return is[undefined](v) }

func iterable(v Value) bool {
	switch v.(type) {
	case undefined, string, marked, List, Tuple, *Dict, *view, *stream, *loop:
		return true
	}
	return false
}

func isSequence(v Value) bool {
	switch v.(type) {
	case undefined, string, marked, *Dict:
		return true
	}
	_, ok := sequence(v)
	return ok
}

func comparing(op string) func(*frame, Value, Value) (bool, error) {
	return func(f *frame, v, other Value) (bool, error) { return f.compare(op, v, other) }
}

func remainder(want int64) func(*frame, Value, Value) (bool, error) {
	return func(_ *frame, v, _ Value) (bool, error) {
		x, ok := number(v)
		if !ok {
			return false, needsOperand("% 2", v)
		}
		rest, err := arithmetic("%", x, int64(2))
		return float(rest) == float64(want), err
	}
}

func divisible(_ *frame, v, by Value) (bool, error) {
	x, ok := number(v)
	y, also := number(by)
	if !ok || !also {
		return false, needsOperand("divisibleby", v, by)
	}
	rest, err := arithmetic("%", x, y)
	return float(rest) == 0, err
}

// sameAs tells none, true and false from what is equal to them. Whether two equal
// numbers or texts are the same one is an accident in Python.
func sameAs(_ *frame, v, other Value) (bool, error) {
	for _, one := range []Value{v, other} {
		switch one.(type) {
		case nil, bool:
			return typeName(v) == typeName(other) && v == other, nil
		}
	}
	return false, errors.New("sameas needs none, true or false on one side: use == for other values")
}

func lowerTest(f *frame, v, _ Value) (bool, error) {
	s, err := f.text(v)
	return s == strings.ToLower(s) && s != strings.ToUpper(s), err
}

func upperTest(f *frame, v, _ Value) (bool, error) {
	s, err := f.text(v)
	return s == strings.ToUpper(s) && s != strings.ToLower(s), err
}
