package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Help is the text for a terminal: every key with its type, default and meaning.
func Help() string {
	var b strings.Builder
	b.WriteString("Keys of train.yaml; --set key=value overrides any of them.\n")
	writeHelp(&b, root)
	return b.String()
}

func writeHelp(b *strings.Builder, s *field) {
	for _, f := range s.children {
		if f.isSection() {
			fmt.Fprintf(b, "\n%s: %s\n", f.path, f.doc)
			writeHelp(b, f)
			continue
		}
		fmt.Fprintf(b, "  %s  %s (default %s)\n", f.path, f.kind(), f.defaultWords())
		for _, line := range wrap(f.meaning(), 90) {
			fmt.Fprintf(b, "      %s\n", line)
		}
	}
}

// Markdown is docs/config.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# train.yaml

<!-- Made from launcher/config by: go test ./launcher/config -update -->

One file describes one job. A key that is left out has its default; an unknown key, a wrong type, a value out of range or values that cannot go together are errors with line and column, all of them at once, before anything starts.

- ` + "`--set train.lr=1e-4`" + ` on the command line overrides any key. A list is given as ` + "`--set data.train=a.txt,b.txt`" + ` or as YAML, ` + "`--set 'data.train=[\"a,b.txt\"]'`" + `.
- ` + "`${NAME}`" + ` in a value is the environment variable NAME, and ` + "`${NAME:-default}`" + ` has a default; an unset variable without one is an error. GOROOT is asked of ` + "`go env GOROOT`" + ` where it is not set. ` + "`$${`" + ` is a literal ` + "`${`" + `.
- Relative paths start at the folder that gorun is started in.
- Sizes take a unit (64MB is 10^6 bytes each, 64MiB 2^20), durations too (90s, 10m).
- configs/train.schema.json is the JSON Schema of this page. With the line ` + "`# yaml-language-server: $schema=train.schema.json`" + ` at the top of a file, editors complete and check keys.

A value marked "not yet" is known and refused: this build cannot do it.
`)
	writeTable(&b, "Top level", root)
	for _, f := range root.children {
		if f.isSection() {
			writeTable(&b, f.key, f)
		}
	}
	return b.String()
}

func writeTable(b *strings.Builder, title string, s *field) {
	fmt.Fprintf(b, "\n## %s\n", title)
	if s.doc != "" {
		fmt.Fprintf(b, "\n%s\n", s.doc)
	}
	b.WriteString("\n| Key | Value | Default | Meaning |\n|---|---|---|---|\n")
	writeRows(b, s)
}

// writeRows writes s's keys, and those of sections within it.
func writeRows(b *strings.Builder, s *field) {
	for _, f := range s.children {
		if f.isSection() && s != root {
			fmt.Fprintf(b, "| `%s` | keys | | %s |\n", f.path, f.doc)
			writeRows(b, f)
		}
		if !f.isSection() {
			cells := []string{"`" + f.path + "`", f.kind(), f.defaultWords(), f.meaning()}
			for i := range cells {
				cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
			}
			fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
		}
	}
}

// kind says in words what a value of f may be.
func (f *field) kind() string {
	var s string
	switch {
	case f.enum != nil:
		s = strings.Join(f.enum, ", ")
	default:
		s = strings.TrimPrefix(f.noun(), "a ")
		if f.bounds != nil {
			s += ", " + f.bounds.words()
		}
	}
	switch {
	case f.length > 0:
		s = fmt.Sprintf("list of %d: %s", f.length, s)
	case f.isList():
		s = "list of " + s + ", or a single one"
	}
	if f.unit != "" {
		s += "; " + f.unit
	}
	return s
}

func (f *field) defaultWords() string {
	if f.derived != "" {
		return f.derived
	}
	if f.def == "" && f.isList() {
		return "empty"
	}
	if f.typ.Kind() == reflect.String && (f.def == "" || strings.TrimSpace(f.def) != f.def) {
		return quote(f.def)
	}
	return f.def
}

// meaning is the documentation of f with the meaning of zero.
func (f *field) meaning() string {
	if f.zero == "" {
		return f.doc
	}
	if f.isList() || f.typ.Kind() == reflect.String {
		return f.doc + " Empty: " + f.zero + "."
	}
	return f.doc + " 0: " + f.zero + "."
}

// wrap breaks s into lines of at most width bytes, at spaces.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
