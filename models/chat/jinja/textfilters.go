package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func lower(s string) string { return cases.Lower(language.Und).String(s) }

func upper(s string) string { return cases.Upper(language.Und).String(s) }

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return titleRune(s[:n]) + lower(s[n:])
}

// titleRune is one character as it begins a word.
func titleRune(s string) string { return cases.Title(language.Und).String(s) }

// titleWords begins each word with a capital; words are parted by blanks, hyphens
// and opening brackets.
func titleWords(s string) string {
	var b strings.Builder
	for s != "" {
		end := strings.IndexFunc(s, partsWords)
		if end < 0 {
			end = len(s)
		}
		_, n := utf8.DecodeRuneInString(s[:end])
		b.WriteString(upper(s[:n]) + lower(s[n:end]))
		next := strings.IndexFunc(s[end:], func(r rune) bool { return !partsWords(r) })
		if next < 0 {
			next = len(s) - end
		}
		b.WriteString(s[end : end+next])
		s = s[end+next:]
	}
	return b.String()
}

func partsWords(r rune) bool { return strings.ContainsRune("-({[<", r) || isSpace(r) }

func trimFilter(f *frame, v Value, a arguments) (Value, error) {
	s, err := f.text(v)
	if err != nil {
		return nil, err
	}
	return strip(f, s, a, true, true)
}

// strip takes white space, or the characters that the argument chars has, from
// the ends of s.
func strip(f *frame, s string, a arguments, left, right bool) (Value, error) {
	given, err := a.bind(0, "chars")
	if err != nil {
		return nil, err
	}
	goes := isSpace
	if given[0] != missing && given[0] != nil {
		chars, err := textOf(given[0])
		if err != nil {
			return nil, err
		}
		goes = func(r rune) bool { return strings.ContainsRune(chars, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, goes)
	}
	if right {
		s = strings.TrimRightFunc(s, goes)
	}
	return f.made(s)
}

// textOf is an argument that must be a text.
func textOf(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case marked:
		return string(v), nil
	case undefined:
		return "", v.fails()
	}
	return "", fmt.Errorf("a text is needed, not a %s", typeName(v))
}

func replaceFilter(f *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	s, err := f.text(v)
	if err != nil {
		return nil, err
	}
	before, err := f.text(given[0])
	if err != nil {
		return nil, err
	}
	after, err := f.text(given[1])
	if err != nil {
		return nil, err
	}
	count := Value(int64(-1))
	if given[2] != missing && given[2] != nil {
		count = given[2]
	}
	return f.replace(s, before, after, count)
}

func (f *frame) replace(s, before, after string, count Value) (Value, error) {
	n, ok := integer(count)
	if !ok {
		return nil, fmt.Errorf("count is a number, not a %s", typeName(count))
	}
	found := min(strings.Count(s, before), len(s)+1)
	if n >= 0 && n < int64(found) {
		found = int(n)
	}
	if err := f.bytes(len(s) + found*max(len(after)-len(before), 0)); err != nil {
		return nil, err
	}
	return strings.Replace(s, before, after, found), nil
}

func indentFilter(f *frame, v Value, a arguments) (Value, error) {
	given, err := a.bind(0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, err := textOf(v)
	if err != nil {
		return nil, err
	}
	by := "    "
	switch width := given[0].(type) {
	case string:
		by = width
	case int64:
		if width > 1000 {
			return nil, fmt.Errorf("%w: an indent of %d", ErrLimit, width)
		}
		by = strings.Repeat(" ", max(int(width), 0))
	default:
		if given[0] != missing {
			return nil, fmt.Errorf("width is a number or a text, not a %s", typeName(width))
		}
	}
	isSet := func(v Value) bool { return v != missing && truth(v) }
	if err := f.step(countFunc(s, endsLine)); err != nil {
		return nil, err
	}
	lines := splitLines(s+"\n", false)
	if err := f.bytes(len(s) + len(lines)*(len(by)+1)); err != nil {
		return nil, err
	}
	for i := range lines {
		if i == 0 && isSet(given[1]) || i > 0 && (isSet(given[2]) || lines[i] != "") {
			lines[i] = by + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}

// splitLines cuts s behind what Python takes for the end of a line.
func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		end := strings.IndexFunc(s, endsLine)
		if end < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			n = 2
		}
		if keep {
			lines = append(lines, s[:end+n])
		} else {
			lines = append(lines, s[:end])
		}
		s = s[end+n:]
	}
	return lines
}

func endsLine(r rune) bool {
	return '\n' <= r && r <= '\r' || '\x1c' <= r && r <= '\x1e' || r == 0x85 || r == 0x2028 || r == 0x2029
}

// title begins each run of letters with a capital: the method of that name.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		cased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		switch {
		case cased && inWord:
			b.WriteString(lower(string(r)))
		case cased:
			b.WriteString(titleRune(string(r)))
		default:
			b.WriteRune(r)
		}
		inWord = cased
	}
	return b.String()
}
