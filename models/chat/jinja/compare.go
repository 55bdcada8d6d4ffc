package jinja

import (
	"cmp"
	"fmt"
	"strings"
)

// compare evaluates a comparison.
func (f *frame) compare(op string, left, right Value) (bool, error) {
	switch op {
	case "==":
		return f.equal(left, right)
	case "!=":
		same, err := f.equal(left, right)
		return !same, err
	case "in":
		return f.contains(right, left)
	case "not in":
		in, err := f.contains(right, left)
		return !in, err
	}
	order, err := f.order(left, right, 0)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	}
	return order >= 0, nil
}

// order compares what has an order: numbers, texts, and lists of such.
func (f *frame) order(left, right Value, depth int) (int, error) {
	left, right = plainText(left), plainText(right)
	x, isNumber := number(left)
	y, alsoNumber := number(right)
	if isNumber && alsoNumber {
		if i, ok := x.(int64); ok {
			if j, ok := y.(int64); ok {
				return cmp.Compare(i, j), nil
			}
		}
		return cmp.Compare(float(x), float(y)), nil
	}
	if s, ok := left.(string); ok {
		if t, ok := right.(string); ok {
			return strings.Compare(s, t), f.step(min(len(s), len(t)) / 64)
		}
	}
	a, isSequence := sequence(left)
	b, alsoSequence := sequence(right)
	if !isSequence || !alsoSequence || typeName(left) != typeName(right) || typeName(left) == "range" {
		return 0, needsOperand("an order", left, right)
	}
	for i := range min(len(a), len(b)) {
		same, err := f.same(a[i], b[i], depth+1)
		if err != nil {
			return 0, err
		}
		if !same {
			return f.order(a[i], b[i], depth+1)
		}
	}
	return cmp.Compare(len(a), len(b)), nil
}

// maxDepth bounds how deep values lie within each other where they are compared
// or written.
const maxDepth = 400

func tooDeep(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: values within values, more than %d deep", ErrLimit, maxDepth)
	}
	return nil
}

// equal is ==: values of different kinds are not equal, but numbers are by value
// and undefined values are to each other.
func (f *frame) equal(left, right Value) (bool, error) { return f.same(left, right, 0) }

func (f *frame) same(left, right Value, depth int) (bool, error) {
	left, right = plainText(left), plainText(right)
	if err := f.step(1); err != nil {
		return false, err
	}
	if err := tooDeep(depth); err != nil {
		return false, err
	}
	x, isNumber := number(left)
	y, alsoNumber := number(right)
	if isNumber || alsoNumber {
		if i, ok := x.(int64); ok {
			if j, ok := y.(int64); ok {
				return i == j, nil
			}
		}
		return isNumber && alsoNumber && float(x) == float(y), nil
	}
	switch a := left.(type) {
	case nil:
		return right == nil, nil
	case string:
		b, ok := right.(string)
		return ok && a == b, f.step(len(a) / 64)
	case undefined:
		_, ok := right.(undefined)
		return ok, nil
	case List:
		b, ok := right.(List)
		return f.sameItems(a, b, ok, depth)
	case Tuple:
		b, ok := right.(Tuple)
		return f.sameItems(a, b, ok, depth)
	case *Dict:
		b, ok := right.(*Dict)
		return f.sameDicts(a, b, ok, depth)
	case *view:
		b, ok := right.(*view)
		if ok && a != b && a.kind != "range" {
			return false, fmt.Errorf("%w: == between dict views", ErrUnsupported)
		}
		if !ok {
			return false, nil
		}
		return f.sameItems(a.items, b.items, b.kind == a.kind, depth)
	}
	switch right.(type) {
	case nil, string, undefined, List, Tuple, *Dict, *view:
		return false, nil
	}
	return left == right, nil // pointers all
}

func (f *frame) sameItems(a, b []Value, sameKind bool, depth int) (bool, error) {
	if !sameKind || len(a) != len(b) {
		return false, nil
	}
	for i := range a {
		if same, err := f.same(a[i], b[i], depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (f *frame) sameDicts(a, b *Dict, sameKind bool, depth int) (bool, error) {
	if !sameKind || a.Len() != b.Len() {
		return false, nil
	}
	for hash, i := range a.at {
		other, ok := b.find(hash)
		if !ok {
			return false, nil
		}
		if same, err := f.same(a.values[i], other, depth+1); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// contains is item in v.
func (f *frame) contains(v, item Value) (bool, error) {
	switch v := plainText(v).(type) {
	case string:
		part, ok := plainText(item).(string)
		if !ok {
			return false, needsOperand("in a text", item)
		}
		return strings.Contains(v, part), f.step(len(v) / 64)
	case *Dict:
		hash, err := hashable(item)
		if err != nil {
			return false, err
		}
		_, ok := v.find(hash)
		return ok, nil
	case *namespace, *loop:
		return false, needsOperand("in", v)
	}
	next, err := f.iterate(v)
	if err != nil {
		return false, err
	}
	for {
		element, ok, err := next()
		if err != nil || !ok {
			return false, err
		}
		if same, err := f.equal(element, item); same || err != nil {
			return same, err
		}
	}
}
