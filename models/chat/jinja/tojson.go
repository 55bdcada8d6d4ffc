package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// jsonWriter writes values as Python's json.dumps does.
type jsonWriter struct {
	strings.Builder
	f            *frame
	ascii        bool   // other characters as \uXXXX
	sorted       bool   // keys by name
	indented     bool   // a line an element
	indent       string // of one level
	comma, colon string
}

// tojson is the filter of that name, with the arguments that it has in Hugging
// Face's libraries.
func (f *frame) tojson(v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{f: f, comma: ", ", colon: ": "}
	w.ascii = given[0] != missing && truth(given[0])
	w.sorted = given[3] != missing && truth(given[3])
	if err := w.setIndent(given[1]); err != nil {
		return nil, err
	}
	if given[2] != missing && given[2] != nil {
		pair, _ := sequence(given[2])
		if len(pair) != 2 {
			return nil, fmt.Errorf("separators are two texts")
		}
		comma, ok := pair[0].(string)
		colon, also := pair[1].(string)
		if !ok || !also {
			return nil, fmt.Errorf("separators are two texts")
		}
		w.comma, w.colon = comma, colon
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.String(), nil
}

func (w *jsonWriter) setIndent(v Value) error {
	if v == missing || v == nil {
		return nil
	}
	w.indented, w.comma = true, ","
	if text, ok := v.(string); ok {
		w.indent = text
		return nil
	}
	n, ok := integer(v)
	if !ok {
		return fmt.Errorf("indent is a number or a text, not a %s", typeName(v))
	}
	if n > 100 {
		return fmt.Errorf("%w: an indent of %d", ErrLimit, n)
	}
	w.indent = strings.Repeat(" ", max(int(n), 0))
	return nil
}

func (w *jsonWriter) value(v Value, depth int) error {
	if err := w.f.step(1); err != nil {
		return err
	}
	if err := tooDeep(depth); err != nil {
		return err
	}
	start := w.Len()
	switch v := plainText(v).(type) {
	case nil, bool, int64, float64:
		w.WriteString(scalar(v))
	case string:
		w.text(v)
	case List:
		return w.list(v, depth)
	case Tuple:
		return w.list(v, depth)
	case *Dict:
		return w.dict(v, depth)
	case undefined:
		return fmt.Errorf("tojson of what is not there: %s", v.why)
	default:
		return fmt.Errorf("a %s can't be written as JSON", typeName(v))
	}
	return w.f.bytes(w.Len() - start)
}

// scalar is a number, boolean or none in JSON, or as a key in quotes.
func scalar(v Value) string {
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		switch {
		case math.IsNaN(v):
			return "NaN"
		case math.IsInf(v, 1):
			return "Infinity"
		case math.IsInf(v, -1):
			return "-Infinity"
		}
		return formatFloat(v)
	}
	return "null"
}

// line starts an element at the given depth on a line of its own.
func (w *jsonWriter) line(depth int) error {
	if !w.indented {
		return nil
	}
	w.WriteByte('\n')
	for range depth {
		w.WriteString(w.indent)
	}
	return w.f.bytes(1 + depth*len(w.indent))
}

func (w *jsonWriter) list(items []Value, depth int) error {
	if len(items) == 0 {
		w.WriteString("[]")
		return w.f.bytes(2)
	}
	w.WriteByte('[')
	for i, item := range items {
		if i > 0 {
			w.WriteString(w.comma)
		}
		if err := w.line(depth + 1); err != nil {
			return err
		}
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	err := w.line(depth)
	w.WriteByte(']')
	return err
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	if d.Len() == 0 {
		w.WriteString("{}")
		return w.f.bytes(2)
	}
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if w.sorted {
		if err := w.f.sort(order, func(i int) Value { return d.keys[i] }, false); err != nil {
			return err
		}
	}
	w.WriteByte('{')
	for n, i := range order {
		if n > 0 {
			w.WriteString(w.comma)
		}
		if err := w.line(depth + 1); err != nil {
			return err
		}
		if key, ok := d.keys[i].(string); ok {
			w.text(key)
		} else {
			w.text(scalar(d.keys[i]))
		}
		w.WriteString(w.colon)
		if err := w.value(d.values[i], depth+1); err != nil {
			return err
		}
	}
	err := w.line(depth)
	w.WriteByte('}')
	return err
}

// text writes s in quotes, escaping what JSON demands and, with ascii, whatever
// is not printable ASCII.
func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r == '\n':
			w.WriteString(`\n`)
		case r == '\r':
			w.WriteString(`\r`)
		case r == '\t':
			w.WriteString(`\t`)
		case r == '\f':
			w.WriteString(`\f`)
		case r == '\b':
			w.WriteString(`\b`)
		case r < ' ' || w.ascii && (r > '~' && r < 0x10000):
			fmt.Fprintf(w, `\u%04x`, r)
		case w.ascii && r > '~':
			high, low := 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff
			fmt.Fprintf(w, `\u%04x\u%04x`, high, low)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// sort puts items into the order of their keys, keeping the order of equal ones;
// in reverse too.
func (f *frame) sort(items []int, key func(int) Value, reverse bool) error {
	var failed error
	slices.SortStableFunc(items, func(i, j int) int {
		if failed != nil {
			return 0
		}
		order, err := f.order(key(i), key(j), 0)
		if err == nil {
			err = f.step(1)
		}
		failed = err
		if reverse {
			return -order
		}
		return order
	})
	return failed
}
