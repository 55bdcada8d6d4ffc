package jinja

import (
	"fmt"
	"strings"
	"time"
)

// maxRange bounds the numbers that range gives, as the sandbox of the reference
// implementation does.
const maxRange = 100_000

// functions are what templates can call without being given it.
var functions = map[string]Value{
	"range":           &function{"range", rangeOf},
	"dict":            &function{"dict", dictOf},
	"namespace":       &function{"namespace", namespaceOf},
	"raise_exception": &function{"raise_exception", raise},
	"strftime_now":    &function{"strftime_now", strftimeNow},
}

func rangeOf(f *frame, a arguments) (Value, error) {
	given, err := a.bind(1, "start", "stop", "step")
	if err != nil {
		return nil, fmt.Errorf("range: %w", err)
	}
	part := [3]int64{0, 0, 1}
	for i, v := range given {
		if v == missing {
			continue
		}
		n, ok := integer(v)
		if !ok {
			return nil, needsOperand("range", v)
		}
		part[i] = n
	}
	start, stop, step := part[0], part[1], part[2]
	if given[1] == missing {
		start, stop = 0, start
	}
	if step == 0 {
		return nil, fmt.Errorf("range: the step can't be 0")
	}
	r := &view{kind: "range", indexed: true, text: fmt.Sprintf("range(%d, %d)", start, stop)}
	if step != 1 {
		r.text = fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
	}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(r.items) == maxRange {
			return nil, fmt.Errorf("%w: a range of more than %d numbers", ErrLimit, maxRange)
		}
		r.items = append(r.items, i)
		if next := i + step; (next > i) != (step > 0) {
			break // past 64 bits
		}
	}
	return r, f.step(len(r.items))
}

// fill sets the names in d that a call of dict or namespace gives, from mappings
// and from arguments with names.
func fill(f *frame, d *Dict, a arguments) error {
	if len(a.positional) > 1 {
		return fmt.Errorf("at most one argument without a name is taken")
	}
	for _, v := range a.positional {
		from, ok := v.(*Dict)
		if !ok {
			return fmt.Errorf("%w: names from a %s", ErrUnsupported, typeName(v))
		}
		for i, key := range from.keys {
			hash, err := hashable(key)
			if err != nil {
				return err
			}
			d.set(hash, key, from.values[i])
		}
	}
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	return f.step(d.Len())
}

func dictOf(f *frame, a arguments) (Value, error) {
	d := &Dict{}
	if err := fill(f, d, a); err != nil {
		return nil, fmt.Errorf("dict: %w", err)
	}
	return d, nil
}

func namespaceOf(f *frame, a arguments) (Value, error) {
	ns := &namespace{}
	if err := fill(f, &ns.names, a); err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	return ns, nil
}

// raise ends the render with the template's own words.
func raise(f *frame, a arguments) (Value, error) {
	given, err := a.bind(1, "message")
	if err != nil {
		return nil, fmt.Errorf("raise_exception: %w", err)
	}
	text, err := f.text(given[0])
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %s", ErrRaised, text)
}

func strftimeNow(f *frame, a arguments) (Value, error) {
	given, err := a.bind(1, "format")
	if err != nil {
		return nil, fmt.Errorf("strftime_now: %w", err)
	}
	format, err := textOf(given[0])
	if err != nil {
		return nil, fmt.Errorf("strftime_now: %w", err)
	}
	text, err := strftime(f.now(), format)
	if err != nil {
		return nil, fmt.Errorf("strftime_now: %w", err)
	}
	return f.made(text)
}

// layouts of strftime's directives in the C locale, as layouts of package time.
var layouts = map[string]string{
	"a": "Mon", "A": "Monday", "b": "Jan", "B": "January", "h": "Jan",
	"d": "02", "-d": "2", "e": "_2", "m": "01", "-m": "1", "y": "06", "Y": "2006", "j": "002",
	"H": "15", "I": "03", "-I": "3", "M": "04", "-M": "4", "S": "05", "-S": "5", "p": "PM",
	"D": "01/02/06", "F": "2006-01-02", "R": "15:04", "T": "15:04:05", "Z": "MST", "z": "-0700",
}

func strftime(now time.Time, format string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(format, "%")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		n := 1
		if strings.HasPrefix(rest, "-") {
			n = 2
		}
		n = min(n, len(rest))
		layout, ok := layouts[rest[:n]]
		switch {
		case ok:
			b.WriteString(now.Format(layout))
		case rest != "" && rest[0] == '%':
			b.WriteByte('%')
		default:
			return "", fmt.Errorf("%w: %%%s in a time", ErrUnsupported, rest[:n])
		}
		format = rest[n:]
	}
}
