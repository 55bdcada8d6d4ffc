package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// length is the number of elements of v, where v has such a number.
func length(v Value) (int, bool) {
	switch v := plainText(v).(type) {
	case undefined:
		return 0, true
	case string:
		return utf8.RuneCountInString(v), true
	case List:
		return len(v), true
	case Tuple:
		return len(v), true
	case *Dict:
		return v.Len(), true
	case *view:
		return len(v.items), true
	}
	return 0, false
}

func lengthFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	if s, ok := plainText(v).(string); ok {
		if err := f.step(len(s) / 16); err != nil {
			return nil, err
		}
	}
	if l, ok := v.(*loop); ok {
		n, err := l.length()
		return int64(n), err
	}
	n, ok := length(v)
	if !ok {
		return nil, fmt.Errorf("a %s has no length", typeName(v))
	}
	return int64(n), nil
}

func firstFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	next, err := f.iterate(v)
	if err != nil {
		return nil, err
	}
	item, ok, err := next()
	if !ok {
		return undefined{"there is no first element"}, err
	}
	return item, err
}

func lastFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	if _, ok := length(v); !ok {
		return nil, fmt.Errorf("a %s has no last element: make it a list first", typeName(v))
	}
	items, err := f.all(v)
	if len(items) == 0 {
		return undefined{"there is no last element"}, err
	}
	return items[len(items)-1], err
}

func listFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	return f.all(v)
}

func joinFilter(f *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	between := ""
	if given[0] != missing {
		if between, err = f.text(given[0]); err != nil {
			return nil, err
		}
	}
	items, err := f.all(v)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, item := range items {
		if given[1] != missing && given[1] != nil {
			if item, err = f.path(item, given[1], missing); err != nil {
				return nil, err
			}
		}
		text, err := f.text(item)
		if err != nil {
			return nil, err
		}
		if err := f.bytes(len(between) + len(text)); err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString(between)
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// reverseFilter gives a text backwards; of other values a stream of the elements.
func reverseFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	items, err := f.all(v)
	if err != nil {
		return nil, err
	}
	slices.Reverse(items)
	switch v.(type) {
	case string:
		var b strings.Builder
		for _, c := range items {
			b.WriteString(c.(string))
		}
		return f.made(b.String())
	case *stream:
		return items, nil
	}
	return &stream{over(items)}, nil
}

func itemsFilter(_ *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case undefined:
		return &stream{over(nil)}, nil
	case *Dict:
		return &stream{over(v.items())}, nil
	}
	return &stream{func() (Value, bool, error) {
		return nil, false, fmt.Errorf("filter items: a dict is needed, not a %s", typeName(v))
	}}, nil
}

func dictsortFilter(f *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("a dict is needed, not a %s", typeName(v))
	}
	by := d.keys
	switch given[1] {
	case missing, "key":
	case "value":
		by = d.values
	default:
		return nil, errors.New(`by is "key" or "value"`)
	}
	return f.sorted(d.items(), by, given[0], given[2])
}

// sorted gives items in the order of their keys. Without caseSensitive, texts are
// compared in lower case.
func (f *frame) sorted(items, keys []Value, caseSensitive, reverse Value) (Value, error) {
	if caseSensitive == missing || !truth(caseSensitive) {
		keys = slices.Clone(keys)
		for i, key := range keys {
			if s, ok := key.(string); ok {
				keys[i] = lower(s)
			}
		}
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	backwards := reverse != missing && truth(reverse)
	if err := f.sort(order, func(i int) Value { return keys[i] }, backwards); err != nil {
		return nil, err
	}
	made := make(List, len(items))
	for n, i := range order {
		made[n] = items[i]
	}
	return made, nil
}

func sortFilter(f *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := f.all(v)
	if err != nil {
		return nil, err
	}
	keys := slices.Clone(items)
	if given[2] != missing && given[2] != nil {
		if s, ok := given[2].(string); ok && strings.Contains(s, ",") {
			return nil, fmt.Errorf("%w: sorting by several attributes", ErrUnsupported)
		}
		for i := range keys {
			if keys[i], err = f.path(keys[i], given[2], missing); err != nil {
				return nil, err
			}
		}
	}
	return f.sorted(items, keys, given[1], given[0])
}
