package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// A field is one key of train.yaml, as its struct tags describe it. Leaves have
// a value; sections have keys of their own.
type field struct {
	path, key       string // "train.lr", "lr"
	doc, unit, zero string
	def, derived    string
	enum            []string
	bounds          *interval
	length          int  // of a list; 0 = any
	same            bool // a resumed run must agree
	typ             reflect.Type
	index           []int // of the value in Config, for reflect's FieldByIndex
	children        []*field
}

// root is the tree of all keys; leaves lists those that hold a value, in the
// order of the structs.
var root, leaves = buildFields()

var durationType, bytesType = reflect.TypeFor[time.Duration](), reflect.TypeFor[Bytes]()

func buildFields() (*field, []*field) {
	r := &field{typ: reflect.TypeFor[Config]()}
	var all []*field
	r.expand(&all)
	return r, all
}

// expand fills f's children from its struct type and appends the leaves to all.
func (f *field) expand(all *[]*field) {
	for i := range f.typ.NumField() {
		sf := f.typ.Field(i)
		tag := sf.Tag.Get
		c := &field{
			key: tag("key"), doc: tag("doc"), unit: tag("unit"), zero: tag("zero"),
			def: tag("def"), derived: tag("derived"), same: tag("same") == "resume",
			typ: sf.Type, index: append(append([]int{}, f.index...), i),
		}
		c.path = strings.TrimPrefix(f.path+"."+c.key, ".")
		if e := tag("enum"); e != "" {
			c.enum = strings.Split(e, "|")
		}
		if r := tag("range"); r != "" {
			c.bounds = parseInterval(r)
		}
		if n := tag("len"); n != "" {
			c.length, _ = strconv.Atoi(n)
		}
		f.children = append(f.children, c)
		if c.typ.Kind() == reflect.Struct {
			c.expand(all)
		} else {
			*all = append(*all, c)
		}
	}
}

func (f *field) child(key string) *field {
	for _, c := range f.children {
		if c.key == key {
			return c
		}
	}
	return nil
}

// lookup finds a key by its path, or returns nil.
func lookup(path string) *field {
	f := root
	for key := range strings.SplitSeq(path, ".") {
		if f = f.child(key); f == nil {
			return nil
		}
	}
	return f
}

func (f *field) isSection() bool { return f.children != nil }
func (f *field) isList() bool    { return f.typ.Kind() == reflect.Slice }

// in returns f's value within c.
func (f *field) in(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(f.index) }

// scalar is the type of the value, or of a list's elements.
func (f *field) scalar() reflect.Type {
	if f.isList() {
		return f.typ.Elem()
	}
	return f.typ
}

// noun says in words what a value of f is.
func (f *field) noun() string {
	switch t := f.scalar(); {
	case f.enum != nil:
		return "one of " + strings.Join(f.enum, ", ")
	case t == durationType:
		return "a duration such as 90s or 10m"
	case t == bytesType:
		return "a size such as 64MB"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int || t.Kind() == reflect.Uint64:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "text"
}

// setText stores the value that text spells: a scalar, or one more element of a
// list. The error completes a sentence that begins with the offending value.
func (f *field) setText(dst reflect.Value, text string) error {
	if f.isList() {
		elem := reflect.New(f.typ.Elem()).Elem()
		if err := f.setScalar(elem, text); err != nil {
			return err
		}
		dst.Set(reflect.Append(dst, elem))
		return nil
	}
	return f.setScalar(dst, text)
}

func (f *field) setScalar(dst reflect.Value, text string) error {
	wrong := fmt.Errorf("is not %s", f.noun())
	switch t := dst.Type(); {
	case t == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return wrong
		}
		dst.SetInt(int64(d))
	case t == bytesType:
		n, ok := parseBytes(text)
		if !ok {
			return wrong
		}
		dst.SetInt(int64(n))
	case t.Kind() == reflect.Int:
		n, err := strconv.ParseInt(text, 10, strconv.IntSize)
		if err != nil {
			return wrong
		}
		dst.SetInt(n)
	case t.Kind() == reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("is not a whole number from 0 to %d", uint64(math.MaxUint64))
		}
		dst.SetUint(n)
	case t.Kind() == reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return wrong
		}
		dst.SetFloat(x)
	case t.Kind() == reflect.Bool:
		switch text {
		case "true", "True", "TRUE":
			dst.SetBool(true)
		case "false", "False", "FALSE":
			dst.SetBool(false)
		default:
			return wrong
		}
	case t.Kind() == reflect.String:
		dst.SetString(text)
	default:
		panic("config: no way to read a value of type " + t.String())
	}
	return nil
}

// text spells a scalar so that setScalar reads an equal value.
func text(v reflect.Value) string {
	switch t := v.Type(); {
	case t == durationType:
		return v.Interface().(time.Duration).String()
	case t.Kind() == reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	}
	return fmt.Sprint(v.Interface())
}

// show spells a whole value for a message.
func show(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		var parts []string
		for i := range v.Len() {
			parts = append(parts, show(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	return text(v)
}

// check holds v, a value of f, against its enum, range and length, and returns
// what is wrong with which part of it, or "".
func (f *field) check(v reflect.Value) (value, problem string) {
	if f.isList() {
		if f.length > 0 && v.Len() != f.length {
			return show(v), fmt.Sprintf("has %d values, want %d", v.Len(), f.length)
		}
		for i := range v.Len() {
			if value, problem = f.checkScalar(v.Index(i)); problem != "" {
				return value, problem
			}
		}
		return "", ""
	}
	return f.checkScalar(v)
}

func (f *field) checkScalar(v reflect.Value) (value, problem string) {
	if f.enum != nil && !contains(f.enum, v.String()) {
		return show(v), "is not " + f.noun() + f.suggestValue(v.String())
	}
	if f.bounds != nil && !f.bounds.holds(number(v)) {
		return show(v), "is out of range: want " + f.bounds.words()
	}
	return "", ""
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}
