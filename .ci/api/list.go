package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// load lists what packages, named as the module's folders, export.
func load(dir string, packages []string) (api, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export,Module"}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	c := exec.Command("go", args...)
	c.Dir = dir
	out, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	} else if err != nil {
		return nil, err
	}
	exports, module := map[string]string{}, ""
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export string
			Module             *struct {
				Path string
				Main bool
			}
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			module = p.Module.Path
		}
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	a := api{}
	for _, p := range packages {
		pkg, err := imp.Import(module + "/" + p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		a[p] = list(pkg, module)
	}
	return a, nil
}

// list is a line for each exported name of a package, each exported field of a struct
// and each exported method. Types are written with their package's path, those of the
// package itself without, and no parameter has a name.
func list(pkg *types.Package, module string) []string {
	write := func(t types.Type) string {
		return types.TypeString(plain(t), func(p *types.Package) string {
			if p == pkg {
				return ""
			}
			return strings.TrimPrefix(p.Path(), module+"/")
		})
	}
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, name := range pkg.Scope().Names() {
		if !ast.IsExported(name) {
			continue
		}
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Const:
			add("const %s %s", name, write(o.Type()))
		case *types.Var:
			add("var %s %s", name, write(o.Type()))
		case *types.Func:
			add("func %s%s", name, strings.TrimPrefix(write(o.Type()), "func"))
		case *types.TypeName:
			if o.IsAlias() {
				add("type %s = %s", name, write(types.Unalias(o.Type())))
				continue
			}
			named := o.Type().(*types.Named)
			switch u := named.Underlying().(type) {
			case *types.Struct:
				add("type %s struct", name)
				for f := range u.Fields() {
					if f.Exported() {
						embedded := ""
						if f.Embedded() {
							embedded = " (embedded)"
						}
						add("type %s struct, %s %s%s", name, f.Name(), write(f.Type()), embedded)
					}
				}
			case *types.Interface:
				add("type %s %s", name, write(u))
				continue // its methods are in the line
			default:
				add("type %s %s", name, write(u))
			}
			methods(named, func(receiver string, m *types.Func) {
				add("method (%s%s) %s%s", receiver, name, m.Name(), strings.TrimPrefix(write(m.Type()), "func"))
			})
		}
	}
	slices.Sort(all)
	return all
}

// methods calls f with each exported method of a type, promoted ones included.
func methods(t *types.Named, f func(receiver string, m *types.Func)) {
	byValue := types.NewMethodSet(t)
	set := types.NewMethodSet(types.NewPointer(t))
	for s := range set.Methods() {
		m := s.Obj().(*types.Func)
		if !m.Exported() {
			continue
		}
		receiver := "*"
		if byValue.Lookup(m.Pkg(), m.Name()) != nil {
			receiver = ""
		}
		f(receiver, m)
	}
}

// plain is a type without the names of parameters and without receivers, whose change
// breaks nobody.
func plain(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Signature:
		var params []*types.TypeParam
		for p := range t.TypeParams().TypeParams() { // each belongs to one signature
			params = append(params, types.NewTypeParam(p.Obj(), p.Constraint()))
		}
		return types.NewSignatureType(nil, nil, params, nameless(t.Params()), nameless(t.Results()), t.Variadic())
	case *types.Slice:
		return types.NewSlice(plain(t.Elem()))
	case *types.Array:
		return types.NewArray(plain(t.Elem()), t.Len())
	case *types.Pointer:
		return types.NewPointer(plain(t.Elem()))
	case *types.Map:
		return types.NewMap(plain(t.Key()), plain(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), plain(t.Elem()))
	case *types.Interface:
		var methods []*types.Func
		for m := range t.Methods() { // those of embedded interfaces too
			methods = append(methods, types.NewFunc(token.NoPos, m.Pkg(), m.Name(), plain(m.Type()).(*types.Signature)))
		}
		var unions []types.Type
		for e := range t.EmbeddedTypes() {
			if !types.IsInterface(e) {
				unions = append(unions, e)
			}
		}
		return types.NewInterfaceType(methods, unions).Complete()
	}
	return t
}

func nameless(t *types.Tuple) *types.Tuple {
	vars := make([]*types.Var, t.Len())
	for i := range vars {
		vars[i] = types.NewParam(token.NoPos, nil, "", plain(t.At(i).Type()))
	}
	return types.NewTuple(vars...)
}
