package config

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// set applies one --set flag, "key.path=value". A value that begins with a
// quote or a bracket is YAML; any other is taken as it is, and split at commas
// where the key holds a list.
func (r *reader) set(flag string) {
	at := place{flag: fmt.Sprintf("--set %s", flag)}
	path, value, ok := strings.Cut(flag, "=")
	path = strings.TrimSpace(path)
	if !ok {
		r.fail(at, "", "want key=value, such as train.lr=1e-4")
		return
	}
	f := lookup(path)
	switch {
	case f == nil:
		section, key := root, path
		if i := strings.LastIndex(path, "."); i >= 0 {
			key = path[i+1:]
			if s := lookup(path[:i]); s != nil && s.isSection() {
				section = s
			}
		}
		r.fail(at, path, "unknown key%s", suggest(section, key))
		return
	case f.isSection():
		r.fail(at, path, "is a section; set one of its keys, such as %s.%s", path, f.children[0].key)
		return
	}
	delete(r.broken, f.path)
	r.given[f.path] = at
	if value != "" && strings.ContainsRune(`["'`, rune(value[0])) {
		if node, err := parseValue(value); err == nil {
			r.setNode(f, at, node)
			return
		}
	}
	r.clear(f)
	parts := []string{value}
	if f.isList() {
		parts = strings.Split(value, ",")
	}
	for _, p := range parts {
		if f.isList() && p == "" {
			continue // --set data.eval= empties a list
		}
		r.text(f, at, p)
	}
}

// setNode reads a flag's value that is YAML. Its positions are those within the
// flag, of no use to anybody: errors keep the flag as their place.
func (r *reader) setNode(f *field, at place, node ast.Node) {
	before := len(r.errs)
	r.leaf(f, node)
	r.given[f.path] = at
	for _, e := range r.errs[before:] {
		e.Where, e.line, e.column = at.flag, 0, 0
	}
}

func parseValue(value string) (ast.Node, error) {
	tree, err := parser.ParseBytes([]byte(value), 0)
	if err != nil {
		return nil, err
	}
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return nil, fmt.Errorf("%q is not one YAML value", value)
	}
	return tree.Docs[0].Body, nil
}
