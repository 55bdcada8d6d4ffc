package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type textMethod func(f *frame, s string, a arguments) (Value, error)

// textMethods are those of str.
var textMethods = map[string]textMethod{
	"strip":  func(f *frame, s string, a arguments) (Value, error) { return strip(f, s, a, true, true) },
	"lstrip": func(f *frame, s string, a arguments) (Value, error) { return strip(f, s, a, true, false) },
	"rstrip": func(f *frame, s string, a arguments) (Value, error) { return strip(f, s, a, false, true) },

	"upper":      changing(upper),
	"lower":      changing(lower),
	"capitalize": changing(capitalize),
	"title":      changing(title),

	"startswith": affix(strings.HasPrefix),
	"endswith":   affix(strings.HasSuffix),

	"removeprefix": removing(strings.TrimPrefix),
	"removesuffix": removing(strings.TrimSuffix),

	"split":      func(f *frame, s string, a arguments) (Value, error) { return splitText(f, s, a, false) },
	"rsplit":     func(f *frame, s string, a arguments) (Value, error) { return splitText(f, s, a, true) },
	"splitlines": lines,
	"partition":  partition(false),
	"rpartition": partition(true),
	"replace":    replaceText,
	"join":       joinText,
	"count":      counting(strings.Count),
	"find":       counting(func(s, part string) int { return runesBefore(s, strings.Index(s, part)) }),
	"rfind":      counting(func(s, part string) int { return runesBefore(s, strings.LastIndex(s, part)) }),
	"index":      finding(strings.Index),
	"rindex":     finding(strings.LastIndex),
	"isdigit":    every(unicode.IsDigit),
	"isalpha":    every(unicode.IsLetter),
	"isspace":    every(isSpace),
}

// dictMethods are those of dict.
var dictMethods = map[string]func(d *Dict, a arguments) (Value, error){
	"get": func(d *Dict, a arguments) (Value, error) {
		given, err := a.bind(1, "key", "default")
		if err != nil {
			return nil, err
		}
		hash, err := hashable(given[0])
		if err != nil {
			return nil, err
		}
		if v, ok := d.find(hash); ok {
			return v, nil
		}
		if given[1] == missing {
			return nil, nil
		}
		return given[1], nil
	},
	"keys":   dictView("dict_keys", func(d *Dict) []Value { return d.keys }),
	"values": dictView("dict_values", func(d *Dict) []Value { return d.values }),
	"items":  dictView("dict_items", (*Dict).items),
	"copy":   func(d *Dict, a arguments) (Value, error) { return d, a.none() },
}

func dictView(kind string, items func(*Dict) []Value) func(*Dict, arguments) (Value, error) {
	return func(d *Dict, a arguments) (Value, error) {
		return &view{kind: kind, items: items(d)}, a.none()
	}
}

// listMethods are those of list and tuple.
var listMethods = map[string]func(f *frame, items []Value, a arguments) (Value, error){
	"count": func(f *frame, items []Value, a arguments) (Value, error) {
		n, _, err := f.occurrences(items, a)
		return n, err
	},
	"copy": func(_ *frame, items []Value, a arguments) (Value, error) {
		return List(items), a.none()
	},
	"index": func(f *frame, items []Value, a arguments) (Value, error) {
		n, first, err := f.occurrences(items, a)
		if err == nil && n == 0 {
			err = errors.New("the list has no such element")
		}
		return first, err
	},
}

// occurrences counts the elements equal to the argument and finds the first.
func (f *frame) occurrences(items []Value, a arguments) (n, first int64, err error) {
	given, err := a.bind(1, "value")
	if err != nil {
		return 0, 0, err
	}
	for i, item := range items {
		same, err := f.equal(item, given[0])
		if err != nil {
			return 0, 0, err
		}
		if same {
			if n == 0 {
				first = int64(i)
			}
			n++
		}
	}
	return n, first, nil
}

// changers change their value, which no template may: they are not there.
var changers = map[string]string{
	"dict": "clear pop popitem setdefault update",
	"list": "append clear extend insert pop remove reverse sort",
}

// missingMethods are the methods that Python's values have and these lack, with
// the kinds that have them.
var missingMethods = func() map[string]string {
	of := map[string]string{
		"str": "casefold center encode expandtabs format format_map isalnum isascii isdecimal " +
			"isidentifier islower isnumeric isprintable istitle isupper ljust maketrans rjust swapcase translate zfill",
		"dict": "fromkeys",
	}
	missing := map[string]string{}
	for kind, names := range of {
		for name := range strings.FieldsSeq(names) {
			missing[name] = kind
		}
	}
	return missing
}()

// methodOf is the method of v of that name. A method of Python that is missing
// here is one that fails.
func methodOf(v Value, name string) (Value, bool) {
	kind := typeName(v)
	method := func(call func(f *frame, a arguments) (Value, error)) (Value, bool) {
		return &function{name, func(f *frame, a arguments) (Value, error) {
			var made Value
			err := a.unnamed(name)
			if err == nil {
				made, err = call(f, a)
			}
			if err != nil {
				return nil, fmt.Errorf("method %s of %s: %w", name, kind, err)
			}
			return made, nil
		}}, true
	}
	switch v := v.(type) {
	case string:
		if m, ok := textMethods[name]; ok {
			return method(func(f *frame, a arguments) (Value, error) { return m(f, v, a) })
		}
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return method(func(_ *frame, a arguments) (Value, error) { return m(v, a) })
		}
		if slices.Contains(strings.Fields(changers[kind]), name) {
			return undefined{"no template may change a dict with " + name}, true
		}
	case List:
		if m, ok := listMethods[name]; ok {
			return method(func(f *frame, a arguments) (Value, error) { return m(f, v, a) })
		}
		if slices.Contains(strings.Fields(changers[kind]), name) {
			return undefined{"no template may change a list with " + name}, true
		}
	case Tuple:
		if m, ok := listMethods[name]; ok && name != "copy" {
			return method(func(f *frame, a arguments) (Value, error) { return m(f, v, a) })
		}
	}
	if missingMethods[name] == kind {
		return method(func(*frame, arguments) (Value, error) { return nil, ErrUnsupported })
	}
	return nil, false
}

// unnamed fails where a method is given arguments by name that takes none so.
func (a arguments) unnamed(method string) error {
	if len(a.named) > 0 && !slices.Contains([]string{"split", "rsplit", "splitlines"}, method) {
		return fmt.Errorf("argument %s is not taken by name", a.named[0].name)
	}
	return nil
}

func changing(change func(string) string) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		if err := a.none(); err != nil {
			return nil, err
		}
		return f.made(change(s))
	}
}

func every(holds func(rune) bool) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		if err := a.none(); err != nil {
			return nil, err
		}
		other := strings.IndexFunc(s, func(r rune) bool { return !holds(r) })
		return s != "" && other < 0, f.step(len(s) / 16)
	}
}

// affix takes a text or a tuple of texts, of which one must fit.
func affix(fits func(s, affix string) bool) textMethod {
	return func(_ *frame, s string, a arguments) (Value, error) {
		given, err := a.bind(1, "affix")
		if err != nil {
			return nil, err
		}
		affixes, ok := given[0].(Tuple)
		if !ok {
			affixes = Tuple{given[0]}
		}
		for _, v := range affixes {
			text, err := textOf(v)
			if err != nil {
				return nil, err
			}
			if fits(s, text) {
				return true, nil
			}
		}
		return false, nil
	}
}

func removing(trim func(s, affix string) string) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		text, err := oneText(a)
		if err != nil {
			return nil, err
		}
		return f.made(trim(s, text))
	}
}

func counting(count func(s, part string) int) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		text, err := oneText(a)
		if err != nil {
			return nil, err
		}
		return int64(count(s, text)), f.step(len(s) / 16)
	}
}

// finding is counting, where the text must be there.
func finding(find func(s, part string) int) textMethod {
	return func(f *frame, s string, a arguments) (Value, error) {
		text, err := oneText(a)
		if err != nil {
			return nil, err
		}
		at := find(s, text)
		if at < 0 {
			return nil, errors.New("the text has no such part")
		}
		return int64(runesBefore(s, at)), f.step(len(s) / 16)
	}
}

func oneText(a arguments) (string, error) {
	given, err := a.bind(1, "text")
	if err != nil {
		return "", err
	}
	return textOf(given[0])
}

// runesBefore is an offset in bytes as one in characters; -1 stays.
func runesBefore(s string, offset int) int {
	if offset < 0 {
		return offset
	}
	return utf8.RuneCountInString(s[:offset])
}
