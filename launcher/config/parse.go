package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Load reads a train.yaml, applies the --set flags ("train.lr=1e-4") on top of
// it, works out what is not given, and validates the result. Where that is well,
// checks look at what lies outside of the file. The error is an Errors with all
// that is wrong, or the error of reading the file.
func Load(path string, sets []string, checks ...Check) (*Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the job's configuration: %w", err)
	}
	return Parse(path, src, sets, checks...)
}

// Parse is Load for a file that has been read already; file is its name in
// errors, and gives the job's name where the file gives none.
func Parse(file string, src []byte, sets []string, checks ...Check) (*Config, error) {
	return parse(file, src, sets, processEnv, checks...)
}

func parse(file string, src []byte, sets []string, env environ, checks ...Check) (*Config, error) {
	r := &reader{
		config: new(Config), file: file, env: env,
		given: map[string]place{}, broken: map[string]bool{},
	}
	setDefaults(r.config)
	if !r.readFile(src) {
		return nil, r.errs
	}
	for _, s := range sets {
		r.set(s)
	}
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	given := func(key string) bool { _, ok := r.given[key]; return ok }
	r.config.resolve(name, given)
	r.report(r.config.problems())
	if len(r.errs) > 0 {
		return nil, r.errs.sorted()
	}
	for _, c := range checks {
		if r.config.folderAnswers(c.Key) && !given(c.Key) {
			continue
		}
		if err := c.Look(r.config); err != nil {
			r.report([]problem{{keys: []string{c.Key}, msg: err.Error()}})
		}
	}
	if len(r.errs) > 0 {
		return nil, r.errs.sorted()
	}
	if r.config.Model.Path != "" {
		r.config.Model.forgetShape(nobody)
	}
	return r.config, nil
}

// A Check is what the caller holds against the value of a key, such as whether the
// files that it names are there. Its error is reported at the key's place. Beside
// model.path, a check of a key of the model's shape is made where the key is given.
type Check struct {
	Key  string
	Look func(*Config) error
}

// setDefaults gives every key its default. A key without one keeps the zero of
// its type.
func setDefaults(c *Config) {
	for _, f := range leaves {
		if f.def == "" {
			continue
		}
		texts := []string{f.def}
		if f.isList() {
			texts = strings.Split(f.def, ",")
		}
		for _, t := range texts {
			if err := f.setText(f.in(c), t); err != nil {
				panic(fmt.Sprintf("config: default of %s: %s %v", f.path, f.def, err))
			}
		}
	}
}

// A reader collects the values and the errors of one configuration.
type reader struct {
	config *Config
	file   string
	env    environ
	given  map[string]place // where each key's value comes from
	broken map[string]bool  // keys whose value could not be read
	errs   Errors
}

func (r *reader) fail(p place, key, format string, args ...any) {
	r.errs = append(r.errs, p.errorf(key, format, args...))
}

func (r *reader) at(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{file: r.file}
	}
	return place{file: r.file, line: t.Position.Line, column: t.Position.Column}
}

// readFile reads all keys. It is false for a file without any to speak of: then
// there is no point in reporting what else is missing.
func (r *reader) readFile(src []byte) bool {
	tree, err := parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			at := r.at(syntax.Token)
			r.fail(at, "", "not valid YAML: %s%s", syntax.Message, braceHint(src, at.line))
		} else {
			r.fail(place{file: r.file}, "", "not valid YAML: %v", err)
		}
		return false
	}
	var bodies []ast.Node
	for _, doc := range tree.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		r.fail(place{file: r.file}, "", "the file holds no keys")
	case 1:
		if _, ok := bodies[0].(ast.MapNode); ok {
			r.section(root, bodies[0])
			return true
		}
		r.fail(r.at(bodies[0].GetToken()), "", "%s is not a job; want keys such as %q", spell(bodies[0]), "name: …")
	default:
		r.fail(r.at(bodies[1].GetToken()), "", "a second document begins here; a job is one document")
	}
	return false
}

// braceHint explains the most likely syntax error: the braces of a variable
// within those of a section.
func braceHint(src []byte, line int) string {
	lines := strings.Split(string(src), "\n")
	if line < 1 || line > len(lines) || !strings.Contains(lines[line-1], "${") {
		return ""
	}
	return "; within { } and [ ], a value with ${…} must stand in quotes"
}

// section reads the keys of a mapping into f's children.
func (r *reader) section(f *field, node ast.Node) {
	if _, empty := node.(*ast.NullNode); empty {
		return
	}
	m, ok := node.(ast.MapNode)
	if !ok {
		r.fail(r.at(node.GetToken()), f.path, "%s is not a section; want keys such as %q", spell(node), f.children[0].key+": …")
		return
	}
	seen := map[string]place{}
	for it := m.MapRange(); it.Next(); {
		tok := it.Key().GetToken()
		key, at := tok.Value, r.at(tok)
		path := strings.TrimPrefix(f.path+"."+key, ".")
		if first, ok := seen[key]; ok {
			r.fail(at, path, "is given twice, first in line %d", first.line)
			continue
		}
		seen[key] = at
		switch c := f.child(key); {
		case c == nil:
			r.fail(at, path, "unknown key%s", suggest(f, key))
		case c.isSection():
			r.section(c, it.Value())
		default:
			r.given[c.path] = at
			r.leaf(c, it.Value())
		}
	}
}

// leaf reads the value of one key.
func (r *reader) leaf(f *field, node ast.Node) {
	at := r.at(node.GetToken())
	if node.Type() == ast.NullType {
		r.reject(f, at, "has no value; leave the key out for its default")
		return
	}
	r.given[f.path] = at
	if seq, ok := node.(*ast.SequenceNode); ok {
		if !f.isList() {
			r.reject(f, at, "a list is not %s", f.noun())
			return
		}
		r.clear(f)
		for _, item := range seq.Values {
			r.scalar(f, item)
		}
		return
	}
	r.clear(f)
	r.scalar(f, node)
}

// clear empties a list, so that a given one replaces its default.
func (r *reader) clear(f *field) {
	if f.isList() {
		f.in(r.config).SetZero()
	}
}

func (r *reader) scalar(f *field, node ast.Node) {
	at := r.at(node.GetToken())
	switch n := node.(type) {
	case *ast.StringNode:
		quoted := n.Token.Type == token.DoubleQuoteType || n.Token.Type == token.SingleQuoteType
		variable := strings.Contains(n.Value, "${") // may need the quotes
		if quoted && !variable && f.scalar().Kind() != reflect.String && f.scalar() != durationType && f.scalar() != bytesType {
			r.reject(f, at, "%q is text; want %s, without quotes", n.Value, f.noun())
			return
		}
		r.text(f, at, n.Value)
	case *ast.LiteralNode:
		r.text(f, at, n.Value.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		r.text(f, at, node.GetToken().Value)
	case *ast.AliasNode:
		r.reject(f, at, "a value that begins with * must stand in quotes")
	default:
		r.reject(f, at, "%s is not %s", spell(node), f.noun())
	}
}

// text expands variables in a scalar's text, stores it and checks it.
func (r *reader) text(f *field, at place, text string) {
	expanded, err := expand(text, r.env)
	if err != nil {
		r.reject(f, at, "%q: %v", text, err)
		return
	}
	if err := f.setText(f.in(r.config), expanded); err != nil {
		r.reject(f, at, "%q %v", expanded, err)
	}
}

// reject reports the value of f and keeps checks that would use it from
// reporting it again.
func (r *reader) reject(f *field, at place, format string, args ...any) {
	r.broken[f.path] = true
	r.fail(at, f.path, format, args...)
}

// report adds problems, with the place of each value. Those that involve a value
// that could not be read are left out.
func (r *reader) report(ps []problem) {
next:
	for _, p := range ps {
		for _, key := range p.keys {
			if r.broken[key] {
				continue next
			}
		}
		at := place{file: r.file}
		for _, key := range p.keys {
			if where, ok := r.given[key]; ok {
				at = where
				break
			}
		}
		r.fail(at, p.keys[0], "%s", p.msg)
	}
}

// spell names a node that cannot be a value.
func spell(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a section"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tagged value"
	}
	return fmt.Sprintf("%q", strings.TrimSpace(node.GetToken().Value))
}
