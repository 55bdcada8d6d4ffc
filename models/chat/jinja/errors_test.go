package jinja

import (
	"errors"
	"strings"
	"testing"
)

// A fault is told with its place, and the thing itself by name.
func TestErrorsNameTheThingAndItsPlace(t *testing.T) {
	vars := vars(t)
	for _, c := range []struct {
		source string
		want   string
		is     error // nil: any
	}{
		// what the language has and this package has not
		{"a\n  {% include 'x' %}", "line 2, column 6: unsupported in chat templates here: tag include", ErrUnsupported},
		{"{% block x %}", "line 1, column 4: unsupported in chat templates here: tag block", ErrUnsupported},
		{"{% call f() %}", "tag call", ErrUnsupported},
		{"{% with x = 1 %}", "tag with", ErrUnsupported},
		{"{% do x %}", "tag do", ErrUnsupported},
		{"{% filter upper %}", "tag filter", ErrUnsupported},
		{"é{{ x | groupby('a') }}", "line 1, column 9: unsupported in chat templates here: filter groupby", ErrUnsupported},
		{"{{ x is escaped }}", "line 1, column 9: unsupported in chat templates here: test escaped", ErrUnsupported},
		{"{{ 'a'.format(1) }}", "line 1, column 8: unsupported in chat templates here: method format of str", ErrUnsupported},
		{"{{ text['format'](1) }}", "line 1, column 18: method format of str: unsupported", ErrUnsupported},
		{"{{ '%d' % 1 }}", "line 1, column 9: unsupported in chat templates here: % as the formatting of a text", ErrUnsupported},
		{"{% for x in y recursive %}", "recursive loops", ErrUnsupported},
		{"{{ f(*x) }}", "line 1, column 6: unsupported in chat templates here: * in a call", ErrUnsupported},
		{"{{ f(**x) }}", "** in a call", ErrUnsupported},
		{"{{ x[1, 2] }}", "several subscripts", ErrUnsupported},
		{"{{ x.__class__ }}", "line 1, column 6: unsupported in chat templates here: attribute __class__", ErrUnsupported},
		{"{{ range(5)[1:] }}", "line 1, column 12: unsupported in chat templates here: slices of a range", ErrUnsupported},
		{"{{ joiner(', ') }}", "function joiner", ErrUnsupported},
		{"{% macro f() %}{{ varargs }}{% endmacro %}", "varargs in a macro", ErrUnsupported},
		{"{% macro f() %}{{ caller() }}{% endmacro %}", "caller in a macro", ErrUnsupported},
		{"{{ '<' | safe | trim }}", "line 1, column 17: filter trim: unsupported in chat templates here: this, of a text that the filter safe marked", ErrUnsupported},
		{"{% set x = '<' | safe %}{{ x.strip() }}", "of a text that the filter safe marked", ErrUnsupported},
		{"{% set x = '<' | safe %}{{ x[0] }}", "of a text that the filter safe marked", ErrUnsupported},
		{"{% set x = '<' | safe %}{{ x[1:] }}", "str marked safe has no slices", nil},
		{"{{ 0x1f }}", "integers in decimal", ErrUnsupported},
		{"{{ 99999999999999999999 }}", "more than 64 bits", ErrUnsupported},
		{"{{ 9223372036854775807 + 1 }}", "line 1, column 24: unsupported in chat templates here: integers of more than 64 bits", ErrUnsupported},
		{"{{ -9223372036854775807 - 2 }}", "more than 64 bits", ErrUnsupported},
		{"{{ 4294967296 * 4294967296 }}", "more than 64 bits", ErrUnsupported},
		{"{{ 10 ** 19 }}", "more than 64 bits", ErrUnsupported},
		{`{{ '\N{DASH}' }}`, `\N{name}`, ErrUnsupported},
		{"{{ strftime_now('%U') }}", "%U in a time", ErrUnsupported},
		{"{{ strftime_now('%') }}", "% in a time", ErrUnsupported},
		// faults of a template
		{"\n{% nonsense %}", "line 2, column 4: unknown tag nonsense", nil},
		{"{% if x %}\n{% endfor %}", "line 2, column 4: unknown tag endfor; the block around it ends with {% endif %}", nil},
		{"{{ 'abc }}", "line 1, column 4: this string has no end", nil},
		{"ab{# c", "line 1, column 3: this comment has no end", nil},
		{"{% raw %} x", "line 1, column 1: this raw block has no end", nil},
		{"{{ x", "line 1, column 1: this tag has no end: }} is missing", nil},
		{"{% if x", "this tag has no end: %} is missing", nil},
		{"{{ x) }}", "line 1, column 5: ')' closes nothing that is open", nil},
		{"{{ 1 1 }}", "line 1, column 6: expected }}, found integer 1", nil},
		{"{{ 1 ? }}", "line 1, column 6: unexpected character '?'", nil},
		{"{{ x. }}", "expected a name or a number behind the dot, found }}", nil},
		{"{% for x of y %}", `line 1, column 10: expected "in", found name of`, nil},
		{`{{ '\ud83d' }}`, "U+D83D is no character", nil},
		{`{{ '\x4' }}`, `\x needs 2 digits`, nil},
		{"{% break %}", "break stands in no loop", nil},
		{"{% for x in y %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}", "continue stands in no loop", nil},
		{"a\xff", "line 1, column 2: the template is not valid UTF-8", nil},
		// faults of the values
		{"{{ messages[1]\n.content + nothing.x }}", "line 2, column 20: nothing is undefined", nil},
		{"{{ 'a' + messages[0].title }}", `line 1, column 8: dict has no attribute "title"`, nil},
		{"{{ messages[9].role }}", "line 1, column 16: list has no element 9", nil},
		{"{{ n + 'a' }}", "line 1, column 6: + can't be applied to none and str", nil},
		{"{{ list | map('abs', 1) | list }}", "filter abs: no arguments are taken", nil},
		{"{{ 'a' | trim(1, 2) }}", "line 1, column 10: filter trim: 2 arguments: at most 1 are taken", nil},
		{"{{ 'a' | replace('b') }}", "filter replace: argument new is missing", nil},
		{"{{ 'a' | trim(x=1) }}", "filter trim: there is no argument x", nil},
		{"{{ list.append(1) }}", "no template may change a list with append", nil},
		{"{% set d.x = 1 %}", "d is no namespace", nil},
		{"{{ raise_exception }}", "a function can't be printed", nil},
		{"{{ list | select }}", "a stream of elements can't be printed", nil},
		{"{{ 1 is sameas 1 }}", "use == for other values", nil},
		{"{{ {[1]: 2} }}", "list can't be a key", nil},
		{"{% if yes %}\n{{ raise_exception('Nur ' ~ messages[0].role) }}{% endif %}", "line 2, column 19: the template refuses: Nur system", ErrRaised},
	} {
		_, err := render(c.source, vars)
		var placed *Error
		if !errors.As(err, &placed) {
			t.Errorf("%q: got error %v, want one with a place: %s", c.source, err, c.want)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\ngot  %v\nwant %s", c.source, err, c.want)
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%q: %v is not a case of %v", c.source, err, c.is)
		}
	}
}

// What Parse refuses as unsupported is refused though it is never reached.
func TestParseRefusesWhatIsNeverReached(t *testing.T) {
	for _, source := range []string{
		"{% if false %}{{ 'a'.format() }}{% endif %}",
		"{% if false %}{{ x | nonsense }}{% endif %}",
		"{{ 1 if true else x is nonsense }}",
	} {
		if _, err := Parse(source); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%q: got %v", source, err)
		}
	}
}

// A template that would run for ever, or make text without end, comes to an end.
func TestLimits(t *testing.T) {
	vars := vars(t)
	small := Options{Limits: Limits{Steps: 100_000, Bytes: 1 << 20}}
	for name, source := range map[string]string{
		"loops":              "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
		"recursion":          "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"doubling":           "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"doubling with ~":    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
		"doubling lists":     "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"doubling by joins":  "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
		"doubling by macros": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = f(ns.x) %}{% endfor %}",
		"replacing":          "{% set ns = namespace(x='xx') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}",
		"indenting":          "{% set ns = namespace(x='x\nx') %}{% for i in range(99) %}{% set ns.x = ns.x | indent(999) | replace(' ', '\n') %}{% endfor %}",
		"repeating text":     "{{ 'x' * 999999999999 }}",
		"repeating lists":    "{{ [1] * 999999999999 }}",
		"repeating nothing":  "{{ ('' * 9223372036854775807) * 9223372036854775807 }}{{ 'ab' * 9223372036854775807 }}",
		"splitting":          "{% set x = 'a ' * 200000 %}{{ x.split() }}",
		"splitting at":       "{% set x = 'ab' * 200000 %}{{ x.split('b') }}",
		"splitting lines":    "{% set x = '\n' * 200000 %}{{ x.splitlines() }}",
		"indenting lines":    "{% set x = '\n' * 200000 %}{{ x | indent(0) }}",
		"slicing":            "{% set x = 'a' * 500000 %}{{ x[1:] }}",
		"range":              "{{ range(0, 9223372036854775807, 1) }}",
		"nesting, printed":   "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"nesting, as JSON":   "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
		"nesting, compared":  "{% set ns = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"nesting, ordered":   "{% set ns = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
		"sharing, printed":   "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
		"sharing, as JSON":   "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
		"sharing, compared":  "{% set ns = namespace(x=[], y=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"itself":             "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
		"brackets":           strings.Repeat("{{ ", 1) + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}",
		"lists":              "{{ " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + " }}",
		"additions":          "{{ 1" + strings.Repeat(" + 1", 5000) + " }}",
		"filters":            "{{ 1" + strings.Repeat(" | abs", 5000) + " }}",
		"attributes":         "{{ x" + strings.Repeat(".a", 5000) + " }}",
		"signs":              "{{ " + strings.Repeat("-", 5000) + "1 }}",
		"negations":          "{{ " + strings.Repeat("not ", 5000) + "1 }}",
		"choices":            "{{ 1" + strings.Repeat(" if 1 else 1", 5000) + " }}",
		"choices without":    "{{ 1" + strings.Repeat(" if 1", 5000) + " }}",
		"blocks":             strings.Repeat("{% if 1 %}", 5000),
		"targets":            "{% set " + strings.Repeat("(", 5000) + "a" + strings.Repeat(")", 5000) + " = 1 %}",
		"length":             strings.Repeat("x", maxSource+1),
		"output":             "{% for i in range(99999) %}" + strings.Repeat("x", 1000) + "{% endfor %}",
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(source)
			if err == nil {
				_, err = tmpl.Render(vars, small)
			}
			var placed *Error
			if !errors.As(err, &placed) {
				t.Fatalf("got %v, want an error with a place", err)
			}
			if name != "length" && !errors.Is(err, ErrLimit) {
				t.Fatalf("got %v, want a case of ErrLimit", err)
			}
		})
	}
}

// The deepest that Parse and Render take together stays within the stack.
func TestDeepestCallsWithinTheStack(t *testing.T) {
	deep := strings.Repeat("(1 + ", maxNesting/5) + "f(n - 1)" + strings.Repeat(" | int)", maxNesting/5)
	source := "{% macro f(n) %}{% if n > 0 %}{{ " + deep + " }}{% endif %}{% endmacro %}{{ f(98) }}"
	if _, err := render(source, nil); err != nil {
		t.Fatal(err)
	}
}

func TestMisplacedGeneration(t *testing.T) {
	for source, wrong := range map[string]bool{
		"{% generation %}a{% endgeneration %}":                                                    false,
		"{% for x in [1] %}{% if x %}{% generation %}a{% endgeneration %}{% endif %}{% endfor %}": false,
		"{% macro f() %}\n{% generation %}a{% endgeneration %}{% endmacro %}{{ f() }}":            true,
		"{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}":                      true,
		"{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}":                 true,
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if !tmpl.MarksGeneration() {
			t.Errorf("%q marks generation", source)
		}
		if err := tmpl.Misplaced(); (err != nil) != wrong {
			t.Errorf("%q: misplaced: %v", source, err)
		}
		out, err := tmpl.Render(nil, options)
		captured := strings.Contains(source, "macro") || strings.Contains(source, "set")
		if err != nil || captured != (out.Generated == nil) {
			t.Errorf("%q: generated %v (%v)", source, out.Generated, err)
		}
	}
}

// A template can't change what it is given, nor leave anything for the next render.
func TestRenderLeavesItsValuesAlone(t *testing.T) {
	vars := vars(t)
	tmpl, err := Parse("{{ seven }}{{ kept }}{% set seven = 8 %}{% set kept = 1 %}{% macro f() %}{% endmacro %}{{ seven }}")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := tmpl.Render(vars, options)
		if err != nil || got.Text != "78" {
			t.Errorf("got %q and error %v", got.Text, err)
		}
	}
	if vars["seven"] != int64(7) || vars["f"] != nil || vars["kept"] != nil {
		t.Errorf("the variables changed: %v", vars)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, source := range constructs(f) {
		f.Add(source)
	}
	vars := vars(f)
	o := Options{Limits: Limits{Steps: 20_000, Bytes: 1 << 20}, Now: options.Now}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err == nil {
			_, err = tmpl.Render(vars, o)
		}
		var placed *Error
		if err != nil && !errors.As(err, &placed) {
			t.Errorf("%q: an error without a place: %v", source, err)
		}
	})
}
