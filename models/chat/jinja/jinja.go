// Package jinja renders the templates that come with chat models: the part of
// the Jinja language that such templates use, byte for byte as the reference
// implementation in Python does with the settings under which Hugging Face's
// libraries run it:
//
//   - the line break behind a block tag is dropped, blanks before one are too,
//     and one line break at the end of the template is;
//   - break and continue work within for, and {% generation %} marks text;
//   - tojson writes what Python's json.dumps(x, ensure_ascii=False) writes, the
//     keys in the order in which they came;
//   - raise_exception(text) and strftime_now(format) are there;
//   - an undefined value prints as nothing and is false; what needs its contents
//     is an error;
//   - nothing that a template does changes the values that it is given.
//
// A package of its own, for the Go libraries of this language keep mappings
// without their order and take none and undefined for one.
//
// What the package knows:
//
//	tags       if elif else, for (with if and else), set (also a, b and ns.x, and
//	           as a block), macro, generation, break, continue, raw
//	operators  + - * / // % ** ~, comparisons in chains, in, not in, and, or, not,
//	           is, | and x if y else z, subscripts and slices
//	filters    see the tables in filters.go and sequences.go
//	tests      see the table in tests.go
//	methods    of str, dict, list and loop: see the tables in methods.go
//	functions  range, dict, namespace, raise_exception, strftime_now
//
// Everything else that the language has is refused by Parse, named, with its line
// and column ([ErrUnsupported]).
//
// In one place the package follows what a template says where the reference
// implementation does not: a name that a loop, a macro or a captured block reads
// before the block around it sets that name has the value it was given with the
// render, not none.
//
// A template is untrusted input: a render ends after a bounded number of steps
// and bytes ([Limits]), and neither Parse nor Render panics.
package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Errors that callers tell apart with errors.Is. Each comes within an [*Error].
var (
	// ErrUnsupported: the language has it, this package has not.
	ErrUnsupported = errors.New("unsupported in chat templates here")
	// ErrRaised: the template itself called raise_exception.
	ErrRaised = errors.New("the template refuses")
	// ErrLimit: the render went past its Limits.
	ErrLimit = errors.New("the template does too much")
)

// Error is a fault of a template, or of the values given to it, at a place in
// the template.
type Error struct {
	Line, Col int // from 1; Col counts characters
	Err       error
}

func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %v", e.Line, e.Col, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Template is a parsed template. It holds no state: any number of goroutines may
// render it at once.
type Template struct {
	source    string // line breaks as \n
	body      []stmt
	marks     bool // has {% generation %}
	misplaced int  // offset of a {% generation %} whose text is captured, or -1
}

// maxSource bounds a template's own length in bytes. The longest known ones have
// some tens of kilobytes.
const maxSource = 1 << 20

// Parse reads a template. The error is an [*Error].
func Parse(source string) (*Template, error) {
	t := &Template{source: normal(source), misplaced: -1}
	if len(source) > maxSource {
		return nil, t.errorAt(0, fmt.Errorf("the template has %d bytes: at most %d are read", len(source), maxSource))
	}
	if !utf8.ValidString(source) {
		return nil, t.errorAt(invalidAt(t.source), errors.New("the template is not valid UTF-8"))
	}
	tokens, err := t.lex()
	if err != nil {
		return nil, err
	}
	if err := t.parse(tokens); err != nil {
		return nil, err
	}
	return t, nil
}

// normal gives every line break one form and drops one at the end.
func normal(source string) string {
	return strings.TrimSuffix(breaks.Replace(source), "\n")
}

var breaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func invalidAt(s string) int {
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") {
			return i
		}
	}
	return len(s)
}

// MarksGeneration says whether the template has a {% generation %} block.
func (t *Template) MarksGeneration() bool { return t.marks }

// errorAt gives err the place in the template that lies offset bytes in. An error
// that has a place keeps it.
func (t *Template) errorAt(offset int, err error) error {
	if _, placed := err.(*Error); placed {
		return err
	}
	before := t.source[:min(offset, len(t.source))]
	start := strings.LastIndexByte(before, '\n') + 1
	return &Error{
		Line: strings.Count(before, "\n") + 1,
		Col:  utf8.RuneCountInString(before[start:]) + 1,
		Err:  err,
	}
}

// Limits bounds one render.
type Limits struct {
	Steps int // nodes of the template evaluated, and elements touched
	Bytes int // text made, in the output and on the way to it
}

// DefaultLimits hold for any template and conversation that a model could read:
// they end a render within seconds.
var DefaultLimits = Limits{Steps: 20_000_000, Bytes: 256 << 20}

// Options of a render. The zero value has the default limits and the machine's
// clock.
type Options struct {
	Limits Limits           // a field that is 0 takes DefaultLimits'
	Now    func() time.Time // for strftime_now; nil: time.Now
}

// Span is a range of bytes of a text.
type Span struct{ Start, End int }

// Output is what a render made.
type Output struct {
	Text string
	// Generated are the texts of the {% generation %} blocks, in order; empty ones
	// are left out.
	Generated []Span
}

// Render evaluates the template over vars, which it does not change. The error is
// an [*Error].
func (t *Template) Render(vars map[string]Value, o Options) (Output, error) {
	if o.Limits.Steps == 0 {
		o.Limits.Steps = DefaultLimits.Steps
	}
	if o.Limits.Bytes == 0 {
		o.Limits.Bytes = DefaultLimits.Bytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &run{t: t, left: o.Limits, now: o.Now}
	f := &frame{run: r, out: &r.main, names: &scope{names: vars, outer: &scope{names: functions}}}
	f.names = &scope{outer: f.names} // what the template sets stays out of vars
	if _, err := f.block(t.body); err != nil {
		return Output{}, err
	}
	return Output{Text: r.main.String(), Generated: r.spans}, nil
}

// Misplaced gives an error where the text of a {% generation %} block is captured
// by a macro or a set block: its place in the output is not known then, and
// Output.Generated lacks it.
func (t *Template) Misplaced() error {
	if t.misplaced < 0 {
		return nil
	}
	return t.errorAt(t.misplaced, fmt.Errorf("%w: a generation block within a macro, a set block or another generation block", ErrUnsupported))
}
