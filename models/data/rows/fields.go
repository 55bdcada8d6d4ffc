package rows

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Fields are the names of a row's fields; an empty one is what the format has by
// itself. A name with dots leads into objects and lists: instances.0.output is the
// field output of the first of instances. They are the keys of data.fields.
type Fields struct {
	Messages, Role, Content, Tools, System string
	Instruction, Input, Output             string
	Prompt, Completion                     string
	Text                                   string
}

// or is f, with those of o where f names none.
func (f Fields) or(o Fields) Fields {
	for _, x := range []struct{ mine, other *string }{
		{&f.Messages, &o.Messages}, {&f.Role, &o.Role}, {&f.Content, &o.Content}, {&f.Tools, &o.Tools}, {&f.System, &o.System},
		{&f.Instruction, &o.Instruction}, {&f.Input, &o.Input}, {&f.Output, &o.Output},
		{&f.Prompt, &o.Prompt}, {&f.Completion, &o.Completion}, {&f.Text, &o.Text},
	} {
		if *x.mine == "" {
			*x.mine = *x.other
		}
	}
	return f
}

// Unread is a field that f names and that rows of a format do not have, as its key in
// data.fields; "" for none.
func (f Fields) Unread(format string) string {
	mine, read := reflect.ValueOf(f), reflect.ValueOf(formats[format].fields)
	for i := range mine.NumField() {
		if !mine.Field(i).IsZero() && read.Field(i).IsZero() {
			return strings.ToLower(mine.Type().Field(i).Name)
		}
	}
	return ""
}

// object is a JSON object whose values are not read yet.
type object map[string]json.RawMessage

// get finds a field, which may be null or missing: nil then.
func (o object) get(name string) json.RawMessage {
	if v, ok := o[name]; ok {
		return present(v)
	}
	first, rest, dotted := strings.Cut(name, ".")
	v := o[first]
	for dotted && len(v) > 0 {
		var part string
		part, rest, dotted = strings.Cut(rest, ".")
		v = member(v, part)
	}
	return present(v)
}

// member is a field of an object or an element of a list, or nil.
func member(v json.RawMessage, name string) json.RawMessage {
	var o object
	if json.Unmarshal(v, &o) == nil {
		return o[name]
	}
	var list []json.RawMessage
	if i, err := strconv.Atoi(name); err == nil && json.Unmarshal(v, &list) == nil && i >= 0 && i < len(list) {
		return list[i]
	}
	return nil
}

func present(v json.RawMessage) json.RawMessage {
	if string(v) == "null" {
		return nil
	}
	return v
}

// missing is the error of a field that get has not found.
func (o object) missing(name string) error {
	if _, null := o[name]; null {
		return fmt.Errorf("the field %s is null", name)
	}
	if len(o) == 0 {
		return fmt.Errorf("the field %s is missing: the object is empty", name)
	}
	return fmt.Errorf("the field %s is missing; there are: %s (data.fields gives fields other names)", name, o.keys())
}

// keys lists the fields that there are, for errors.
func (o object) keys() string {
	names := slices.Sorted(maps.Keys(o))
	const most = 12
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
}

// text reads the text field of that name, which must be there.
func (o object) text(name string) (string, error) {
	s, there, err := o.maybeText(name)
	if err == nil && !there {
		err = o.missing(name)
	}
	return s, err
}

// maybeText is text for a field that may be missing.
func (o object) maybeText(name string) (s string, there bool, err error) {
	v := o.get(name)
	if v == nil {
		return "", false, nil
	}
	s, err = unquote(v)
	if err != nil {
		return "", true, fmt.Errorf("the field %s: %w", name, err)
	}
	return s, true, nil
}

// list reads a field that is a list of objects and must be there.
func (o object) list(name string) ([]object, error) {
	v := o.get(name)
	if v == nil {
		return nil, o.missing(name)
	}
	var raws []json.RawMessage
	if err := json.Unmarshal(v, &raws); err != nil {
		return nil, fmt.Errorf("the field %s must be a list, and is %s", name, kind(v))
	}
	list := make([]object, len(raws))
	for i, raw := range raws {
		if json.Unmarshal(raw, &list[i]) != nil || list[i] == nil {
			return nil, fmt.Errorf("%s.%d must be an object, and is %s", name, i, kind(raw))
		}
	}
	return list, nil
}

// unquote reads a JSON text, or a list of parts {"type": "text", "text": …}, whose
// texts are joined.
func unquote(v json.RawMessage) (string, error) {
	if half := loneSurrogate(v); half != "" {
		return "", fmt.Errorf("%s is half of a character", half)
	}
	var s string
	if v[0] == '"' {
		return s, json.Unmarshal(v, &s)
	}
	if v[0] != '[' {
		return "", fmt.Errorf("must be text, and is %s", kind(v))
	}
	var parts []struct {
		Type string
		Text *string
	}
	if err := json.Unmarshal(v, &parts); err != nil {
		return "", fmt.Errorf("must be text, and is %s", kind(v))
	}
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return "", fmt.Errorf("part %d is of type %q, and only text can be trained on", i, p.Type)
		}
		s += *p.Text
	}
	return s, nil
}

// loneSurrogate finds an escape such as \ud83d without its other half, for which
// the JSON reader would put another character.
func loneSurrogate(v json.RawMessage) string {
	for i := 0; i < len(v); i++ {
		if v[i] != '\\' {
			continue
		}
		r := escaped(v[i:])
		switch {
		case !utf16.IsSurrogate(r):
			i++ // and the character that is escaped, which may be a backslash
		case i+6 <= len(v) && utf16.DecodeRune(r, escaped(v[i+6:])) != '\uFFFD':
			i += 11
		default:
			return string(v[i : i+6])
		}
	}
	return ""
}

// escaped is the number of the \u escape that v begins with, or 0.
func escaped(v []byte) rune {
	if len(v) < 6 || v[0] != '\\' || v[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(v[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}
