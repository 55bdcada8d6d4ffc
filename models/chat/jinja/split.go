package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// splitText is split or, from the end, rsplit: at a text, or without one at white
// space, at most maxsplit times.
func splitText(f *frame, s string, a arguments, fromEnd bool) (Value, error) {
	given, err := a.bind(0, "sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	most := -1
	if given[1] != missing {
		n, ok := integer(given[1])
		if !ok {
			return nil, fmt.Errorf("maxsplit is a number, not a %s", typeName(given[1]))
		}
		if n >= 0 && n <= int64(len(s)) {
			most = int(n)
		}
	}
	if given[0] == missing || given[0] == nil {
		if err := f.step(countFunc(s, isSpace)); err != nil { // before memory is taken
			return nil, err
		}
		return texts(f, fields(s, most, fromEnd))
	}
	sep, err := textOf(given[0])
	if err != nil {
		return nil, err
	}
	if sep == "" {
		return nil, errors.New("the separator is empty")
	}
	if err := f.step(strings.Count(s, sep)); err != nil {
		return nil, err
	}
	return texts(f, splitAt(s, sep, most, fromEnd))
}

func countFunc(s string, is func(rune) bool) int {
	n := 0
	for _, r := range s {
		if is(r) {
			n++
		}
	}
	return n
}

// texts makes a list of parts.
func texts(f *frame, parts []string) (Value, error) {
	if err := f.step(len(parts)); err != nil {
		return nil, err
	}
	made := make(List, len(parts))
	for i, part := range parts {
		if err := f.bytes(len(part)); err != nil {
			return nil, err
		}
		made[i] = part
	}
	return made, nil
}

func splitAt(s, sep string, most int, fromEnd bool) []string {
	if !fromEnd {
		if most >= 0 {
			most++
		}
		return strings.SplitN(s, sep, most)
	}
	var parts []string
	for ; most != 0; most-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

// fields are the words of s. Behind the last cut the rest stays as it is, but for
// the white space at the cut.
func fields(s string, most int, fromEnd bool) []string {
	if most < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	trim, other := strings.TrimLeftFunc, strings.TrimRightFunc
	cut := func(s string) (word, rest string) {
		if i := strings.IndexFunc(s, isSpace); i >= 0 {
			return s[:i], s[i:]
		}
		return s, ""
	}
	if fromEnd {
		trim, other = other, trim
		cut = func(s string) (word, rest string) {
			word = s[len(strings.TrimRightFunc(s, func(r rune) bool { return !isSpace(r) })):]
			return word, s[:len(s)-len(word)]
		}
	}
	var parts []string
	for s = trim(s, isSpace); s != "" && most > 0; most-- {
		word, rest := cut(s)
		parts = append(parts, word)
		s = trim(rest, isSpace)
	}
	if s != "" {
		parts = append(parts, s)
	}
	if fromEnd {
		slices.Reverse(parts)
	}
	return parts
}

func lines(f *frame, s string, a arguments) (Value, error) {
	given, err := a.bind(0, "keepends")
	if err != nil {
		return nil, err
	}
	if err := f.step(countFunc(s, endsLine)); err != nil {
		return nil, err
	}
	return texts(f, splitLines(s, given[0] != missing && truth(given[0])))
}

// partition cuts s at the first or last place of a text into what is before, the
// text, and what is behind. Where it is not there, s stands before a first place
// and behind a last one.
func partition(last bool) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		sep, err := oneText(a)
		if err != nil {
			return nil, err
		}
		if sep == "" {
			return nil, errors.New("the separator is empty")
		}
		if err := f.bytes(len(s)); err != nil {
			return nil, err
		}
		i := strings.Index(s, sep)
		if last {
			i = strings.LastIndex(s, sep)
		}
		switch {
		case i >= 0:
			return Tuple{s[:i], sep, s[i+len(sep):]}, nil
		case last:
			return Tuple{"", "", s}, nil
		}
		return Tuple{s, "", ""}, nil
	}
}

func replaceText(f *frame, s string, a arguments) (Value, error) {
	given, err := a.bind(2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	before, err := textOf(given[0])
	if err != nil {
		return nil, err
	}
	after, err := textOf(given[1])
	if err != nil {
		return nil, err
	}
	count := given[2]
	if count == missing {
		count = int64(-1)
	}
	return f.replace(s, before, after, count)
}

func joinText(f *frame, s string, a arguments) (Value, error) {
	given, err := a.bind(1, "iterable")
	if err != nil {
		return nil, err
	}
	items, err := f.all(given[0])
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if parts[i], err = textOf(item); err != nil {
			return nil, err
		}
		if err := f.bytes(len(s) + len(parts[i])); err != nil {
			return nil, err
		}
	}
	return strings.Join(parts, s), nil
}
