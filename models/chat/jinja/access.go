package jinja

import (
	"fmt"
	"strings"
)

func (a *attribute) eval(f *frame) (Value, error) {
	of, err := f.value(a.of)
	if err != nil {
		return nil, err
	}
	return attributeOf(of, a.name)
}

func (s *subscript) eval(f *frame) (Value, error) {
	of, err := f.value(s.of)
	if err != nil {
		return nil, err
	}
	index, err := f.value(s.index)
	if err != nil {
		return nil, err
	}
	return f.element(of, index)
}

// attributeOf is v.name: v's own attribute (a method above all) before the
// element of that name.
func attributeOf(v Value, name string) (Value, error) {
	if own, ok, err := own(v, name); ok || err != nil {
		return own, err
	}
	if d, ok := v.(*Dict); ok {
		if element, ok := d.find(name); ok {
			return element, nil
		}
	}
	return undefined{fmt.Sprintf("%s has no attribute %q", typeName(v), name)}, nil
}

// element is v[index]: the element before the attribute of that name.
func (f *frame) element(v, index Value) (Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, v.fails()
	case marked:
		return nil, errMarked
	case *Dict:
		hash, err := hashable(index)
		if err != nil {
			break
		}
		if element, ok := v.find(hash); ok {
			return element, nil
		}
	case string:
		if i, ok := integer(index); ok {
			if c, ok := runeAt(v, i); ok {
				return c, f.step(len(v) / 16)
			}
		}
	default:
		items, ok := sequence(v)
		i, whole := integer(index)
		if i < 0 {
			i += int64(len(items))
		}
		if ok && whole && i >= 0 && i < int64(len(items)) {
			return items[i], nil
		}
	}
	if name, ok := index.(string); ok {
		if own, ok, err := own(v, name); ok || err != nil {
			return own, err
		}
		return undefined{fmt.Sprintf("%s has no element %q", typeName(v), name)}, nil
	}
	if i, ok := integer(index); ok {
		return undefined{fmt.Sprintf("%s has no element %d", typeName(v), i)}, nil
	}
	return undefined{fmt.Sprintf("%s has no such element", typeName(v))}, nil
}

// own is the attribute name that v itself has, be it a method, a name in a
// namespace or what loop knows.
func own(v Value, name string) (Value, bool, error) {
	switch v := v.(type) {
	case undefined:
		return nil, false, v.fails()
	case marked:
		return nil, false, errMarked
	case *namespace:
		own, ok := v.names.find(name)
		return own, ok, nil
	case *loop:
		own, err := v.attribute(name)
		return own, true, err
	}
	m, ok := methodOf(v, name)
	return m, ok, nil
}

func (s *slice) eval(f *frame) (Value, error) {
	of, err := f.value(s.of)
	if err != nil {
		return nil, err
	}
	if u, ok := of.(undefined); ok {
		return nil, u.fails()
	}
	items, isSequence := sequence(of)
	text, isText := of.(string)
	if is[*view](of) && isSequence {
		return nil, fmt.Errorf("%w: slices of a range; make it a list first", ErrUnsupported)
	}
	if !isSequence && !isText {
		return nil, fmt.Errorf("%s has no slices", typeName(of))
	}
	var runes []rune
	if isText {
		if err := f.step(len(text) / 4); err != nil { // before memory is taken
			return nil, err
		}
		runes = []rune(text)
	}
	indices, err := s.indices(f, len(items)+len(runes))
	if err != nil {
		return nil, err
	}
	if err := f.step(len(indices)); err != nil {
		return nil, err
	}
	if isText {
		var b strings.Builder
		for _, i := range indices {
			b.WriteRune(runes[i])
		}
		return f.made(b.String())
	}
	part := make([]Value, len(indices))
	for n, i := range indices {
		part[n] = items[i]
	}
	if _, ok := of.(Tuple); ok {
		return Tuple(part), nil
	}
	return List(part), nil
}

// indices are those that the slice takes of n elements.
func (s *slice) indices(f *frame, n int) ([]int, error) {
	part := func(e expr) (int64, bool, error) {
		if e == nil {
			return 0, false, nil
		}
		v, err := f.value(e)
		if v == nil || err != nil {
			return 0, false, err
		}
		i, ok := integer(v)
		if !ok {
			return 0, false, fmt.Errorf("slices are cut at integers, not at a %s", typeName(v))
		}
		return i, true, nil
	}
	step, ok, err := part(s.step)
	if err != nil {
		return nil, err
	}
	if !ok {
		step = 1
	} else if step == 0 {
		return nil, fmt.Errorf("a slice's step can't be 0")
	}
	// Forwards the bounds lie in 0..n, backwards in -1..n-1.
	low, high := int64(0), int64(n)
	if step < 0 {
		low, high = -1, int64(n)-1
	}
	bound := func(e expr, without int64) (int64, error) {
		i, ok, err := part(e)
		if !ok || err != nil {
			return without, err
		}
		if i < 0 {
			i += int64(n)
		}
		return min(max(i, low), high), nil
	}
	first, last := low, high
	if step < 0 {
		first, last = high, low
	}
	start, err := bound(s.start, first)
	if err != nil {
		return nil, err
	}
	stop, err := bound(s.stop, last)
	if err != nil {
		return nil, err
	}
	var indices []int
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		indices = append(indices, int(i))
		if step > int64(n) || step < -int64(n) {
			break // the next would lie outside, or past 64 bits
		}
	}
	return indices, nil
}
