package jinja

import (
	"fmt"
	"iter"
)

// Value is a value of the language: nil (none), bool, int64, float64, string,
// [List], [Tuple] or *[Dict], and what only templates make (undefined values,
// functions, namespaces, ...). Values are not changed by a render.
type Value any

// List is a sequence that prints as [a, b].
type List []Value

// Tuple is a sequence that prints as (a, b).
type Tuple []Value

// Dict is a mapping that keeps the order in which its keys came.
type Dict struct {
	keys, values []Value
	at           map[Value]int // by hashable key
}

// hashable is the form under which a key is found: numbers that are equal are one
// key, as in Python. Only strings, numbers, booleans and none are keys.
func hashable(key Value) (Value, error) {
	switch k := plainText(key).(type) {
	case nil, string, int64:
		return k, nil
	case bool:
		return boolInt(k), nil
	case float64:
		if i := int64(k); float64(i) == k {
			return i, nil
		}
		return k, nil
	}
	return nil, fmt.Errorf("%s can't be a key", typeName(key))
}

// Set gives key a value. A key that is there keeps its place.
func (d *Dict) Set(key string, v Value) { d.set(key, key, v) }

func (d *Dict) set(hash, key, v Value) {
	if i, ok := d.at[hash]; ok {
		d.values[i] = v
		return
	}
	if d.at == nil {
		d.at = map[Value]int{}
	}
	d.at[hash] = len(d.keys)
	d.keys = append(d.keys, key)
	d.values = append(d.values, v)
}

// Get is the value of key, and whether it is there.
func (d *Dict) Get(key string) (Value, bool) { return d.find(key) }

func (d *Dict) find(hash Value) (Value, bool) {
	i, ok := d.at[hash]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// All goes through the keys, in order, and their values.
func (d *Dict) All() iter.Seq2[Value, Value] {
	return func(yield func(Value, Value) bool) {
		for i, key := range d.keys {
			if !yield(key, d.values[i]) {
				return
			}
		}
	}
}

// items are the pairs of d.
func (d *Dict) items() []Value {
	pairs := make([]Value, len(d.keys))
	for i, key := range d.keys {
		pairs[i] = Tuple{key, d.values[i]}
	}
	return pairs
}

// Values that only templates make.
type (
	// marked is a text that the filter safe marked. It is a text as others are, but
	// that what + joins with it is escaped for HTML.
	marked string

	// undefined is what a name or an element that is not there gives. why says what
	// was not there.
	undefined struct{ why string }

	// namespace is the one value that a template can change.
	namespace struct{ names Dict }

	// function is anything that can be called.
	function struct {
		name string
		call func(f *frame, a arguments) (Value, error)
	}

	// view is a read-only sequence that is no list: a dict's keys, values or items,
	// or a range.
	view struct {
		kind    string // its name in Python
		items   []Value
		indexed bool   // has subscripts
		text    string // as it prints; empty: kind(items)
	}

	// stream gives its elements once. It has no length and is true.
	stream struct{ next iterator }

	// iterator gives one value after the other; false means that there is no more.
	iterator func() (Value, bool, error)
)

func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case marked:
		return "str marked safe"
	case List:
		return "list"
	case Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case undefined:
		return "undefined value"
	case *namespace:
		return "namespace"
	case *function:
		return "function"
	case *view:
		return v.kind
	case *stream:
		return "stream of elements"
	case *loop:
		return "loop"
	}
	return fmt.Sprintf("Go value of type %T", v)
}

// truth says whether v counts as true.
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case marked:
		return v != ""
	case List:
		return len(v) > 0
	case Tuple:
		return len(v) > 0
	case *Dict:
		return v.Len() > 0
	case *view:
		return len(v.items) > 0
	}
	return true
}

// fails is the error of needing the contents of u.
func (u undefined) fails() error { return fmt.Errorf("%s", u.why) }

// plainText takes the mark of safe from a text.
func plainText(v Value) Value {
	if s, ok := v.(marked); ok {
		return string(s)
	}
	return v
}

// sequence are the elements of v where it is a list of a kind, with subscripts.
func sequence(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case List:
		return v, true
	case Tuple:
		return v, true
	case *view:
		return v.items, v.indexed
	}
	return nil, false
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
