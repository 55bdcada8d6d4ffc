package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// text is v as it prints: Python's str(v).
func (f *frame) text(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case marked:
		return string(v), nil
	case undefined:
		return "", nil
	}
	var b strings.Builder
	err := f.literal(&b, v, 0)
	return b.String(), err
}

// literal writes v as Python's repr(v).
func (f *frame) literal(b *strings.Builder, v Value, depth int) error {
	if err := f.step(1); err != nil {
		return err
	}
	if err := tooDeep(depth); err != nil {
		return err
	}
	start := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(formatFloat(v))
	case string:
		quote(b, v)
	case marked:
		b.WriteString("Markup(")
		quote(b, string(v))
		b.WriteByte(')')
	case undefined:
		b.WriteString("Undefined")
	case List:
		return f.literals(b, "[", v, "]", depth)
	case Tuple:
		if len(v) == 1 {
			return f.literals(b, "(", v, ",)", depth)
		}
		return f.literals(b, "(", v, ")", depth)
	case *view:
		if v.text != "" {
			b.WriteString(v.text)
			break
		}
		return f.literals(b, v.kind+"([", v.items, "])", depth)
	case *Dict:
		return f.dictLiteral(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		if err := f.dictLiteral(b, &v.names, depth); err != nil {
			return err
		}
		b.WriteByte('>')
	default:
		return fmt.Errorf("a %s can't be printed", typeName(v))
	}
	return f.bytes(b.Len() - start)
}

func (f *frame) literals(b *strings.Builder, open string, items []Value, end string, depth int) error {
	b.WriteString(open)
	for i, item := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := f.literal(b, item, depth+1); err != nil {
			return err
		}
	}
	b.WriteString(end)
	return nil
}

func (f *frame) dictLiteral(b *strings.Builder, d *Dict, depth int) error {
	b.WriteByte('{')
	for i, key := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := f.literal(b, key, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := f.literal(b, d.values[i], depth+1); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// formatFloat writes the shortest decimal that reads back as x, as Python does.
func formatFloat(x float64) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 1):
		return "inf"
	case math.IsInf(x, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(x, 'e', -1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(x, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes s as a string literal of Python.
func quote(b *strings.Builder, s string) {
	mark := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		mark = '"'
	}
	b.WriteByte(mark)
	for _, r := range s {
		switch {
		case r == rune(mark) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteByte(mark)
}

// runeAt is the character with index i of s, from the end where i is negative.
func runeAt(s string, i int64) (string, bool) {
	if i < 0 {
		i += int64(utf8.RuneCountInString(s))
	}
	for ; i >= 0 && s != ""; i-- {
		_, n := utf8.DecodeRuneInString(s)
		if i == 0 {
			return s[:n], true
		}
		s = s[n:]
	}
	return "", false
}
