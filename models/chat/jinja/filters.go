package jinja

import (
	"fmt"
	"slices"
)

// filter is what stands behind | : v is the value before it.
type filter func(f *frame, v Value, a arguments) (Value, error)

// filters are set when the program starts, for map calls them by name.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		// of texts; another value is taken as it prints
		"trim":       trimFilter,
		"lower":      textFilter(lower),
		"upper":      textFilter(upper),
		"capitalize": textFilter(capitalize),
		"title":      textFilter(titleWords),
		"replace":    replaceFilter,
		"indent":     indentFilter,
		// to other kinds
		"string": stringFilter,
		"safe":   safeFilter,
		"int":    intFilter,
		"float":  floatFilter,
		"tojson": func(f *frame, v Value, a arguments) (Value, error) { return f.tojson(v, a) },
		"abs":    absFilter,
		// of what may be undefined
		"default": defaultFilter, "d": defaultFilter,
		// of sequences: sequences.go
		"length": lengthFilter, "count": lengthFilter,
		"first":      firstFilter,
		"last":       lastFilter,
		"list":       listFilter,
		"join":       joinFilter,
		"reverse":    reverseFilter,
		"items":      itemsFilter,
		"dictsort":   dictsortFilter,
		"sort":       sortFilter,
		"map":        mapFilter,
		"select":     choosing(true, false),
		"reject":     choosing(false, false),
		"selectattr": choosing(true, true),
		"rejectattr": choosing(false, true),
	}
}

func (f *frame) filter(name string, v Value, a arguments) (Value, error) {
	fn, ok := filters[name]
	if !ok {
		return nil, fmt.Errorf("%w: filter %s", ErrUnsupported, name)
	}
	if _, ok := v.(marked); ok && !slices.Contains([]string{"safe", "string", "tojson", "length", "count", "default", "d", "list"}, name) {
		return nil, fmt.Errorf("filter %s: %w", name, errMarked)
	}
	made, err := fn(f, v, a)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", name, err)
	}
	return made, nil
}

// errMarked: what a text marked safe keeps of its mark under a method, a subscript
// or a filter is not known here.
var errMarked = fmt.Errorf("%w: this, of a text that the filter safe marked", ErrUnsupported)

func safeFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	s, err := f.text(v)
	return marked(s), err
}

func stringFilter(f *frame, v Value, a arguments) (Value, error) {
	if err := a.none(); err != nil {
		return nil, err
	}
	if _, ok := v.(marked); ok {
		return v, nil
	}
	return f.text(v)
}

// textFilter is a filter without arguments that makes a text of a text.
func textFilter(change func(string) string) filter {
	return func(f *frame, v Value, a arguments) (Value, error) {
		if err := a.none(); err != nil {
			return nil, err
		}
		s, err := f.text(v)
		if err != nil {
			return nil, err
		}
		return f.made(change(s))
	}
}

func defaultFilter(_ *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	if !isUndefined(v) && (truth(v) || given[1] == missing || !truth(given[1])) {
		return v, nil
	}
	if given[0] == missing {
		return "", nil
	}
	return given[0], nil
}
