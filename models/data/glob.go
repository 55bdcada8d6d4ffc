package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A file is a part of a file on disk that is read.
type file struct {
	path string
	// rel is the path below the part of the pattern that has no wildcard. It is
	// the same on hosts that keep the same files in different places, and
	// choices by hash go by it.
	rel      string
	real     string // absolute and without links: its identity
	from, to int64  // bytes
}

func (f file) size() int64 { return f.to - f.from }

// Check says what keeps files that patterns name from being read: one that is not
// there, a glob that matches none, or only empty ones. It looks at names and sizes,
// and reads nothing. No patterns are no error.
func Check(patterns []string) error {
	_, _, err := find(patterns)
	return err
}

// find lists the files that patterns name, each once, in the order of the
// patterns and sorted within each; empty ones are counted only.
func find(patterns []string) (files []file, empty int, err error) {
	seen := map[string]bool{}
	for _, p := range patterns {
		found, err := expand(p)
		if err != nil {
			return nil, 0, err
		}
		hollow := 0
		for _, f := range found {
			if seen[f.real] {
				continue
			}
			seen[f.real] = true
			if f.size() == 0 {
				hollow++
				continue
			}
			files = append(files, f)
		}
		if hollow > 0 && hollow == len(found) {
			return nil, 0, fmt.Errorf("%s names %d file(s), all of them empty", p, hollow)
		}
		empty += hollow
	}
	return files, empty, nil
}

// expand lists the regular files that one pattern names, at least one. A file
// of that very name stands for itself. In a glob, * ? and [a-z] match within a
// name, and ** matches any number of folders, also none.
func expand(pattern string) ([]file, error) {
	info, err := os.Stat(pattern)
	switch {
	case err == nil && info.IsDir():
		return nil, fmt.Errorf("%s is a folder; %s names all files in it", pattern, filepath.Join(pattern, "**"))
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", pattern)
	case err == nil:
		real, err := realPath(pattern)
		return []file{{path: pattern, rel: filepath.Base(pattern), real: real, to: info.Size()}}, err
	case !strings.ContainsAny(pattern, `*?[`):
		return nil, fmt.Errorf("cannot read %s: %w", pattern, errors.Unwrap(err))
	}
	base, rest := splitPattern(pattern)
	for _, r := range rest {
		if _, err := path.Match(r, ""); err != nil {
			return nil, fmt.Errorf("glob %s: %q is malformed: a [ without ], or a \\ at the end", pattern, r)
		}
	}
	// WalkDir does not follow a link that it is started at.
	root, err := realPath(base)
	if err != nil {
		return nil, fmt.Errorf("glob %s: cannot read the folder %s: %w", pattern, base, err)
	}
	w := walk{root: root, base: base, rest: rest}
	if err := filepath.WalkDir(root, w.visit); err != nil {
		return nil, fmt.Errorf("glob %s: %w", pattern, err)
	}
	if len(w.found) == 0 {
		return nil, fmt.Errorf("glob %s matches no file; below %s there are %d files and %d folders that were looked at", pattern, base, w.files, w.folders)
	}
	slices.SortFunc(w.found, func(a, b file) int { return strings.Compare(a.rel, b.rel) })
	return w.found, nil
}

// splitPattern parts a glob before its first name with a wildcard.
func splitPattern(pattern string) (base string, rest []string) {
	names := strings.Split(filepath.ToSlash(filepath.Clean(pattern)), "/")
	n := slices.IndexFunc(names, func(s string) bool { return strings.ContainsAny(s, `*?[`) })
	base = strings.Join(names[:n], "/")
	switch {
	case n == 0:
		base = "."
	case base == "":
		base = "/"
	}
	return base, names[n:]
}

// A walk collects what a glob matches below root.
type walk struct {
	root, base     string
	rest           []string
	found          []file
	files, folders int
}

func (w *walk) visit(p string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if p == w.root {
		return nil
	}
	rel, err := filepath.Rel(w.root, p)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	names := strings.Split(rel, "/")
	if entry.IsDir() {
		w.folders++
		if len(names) >= len(w.rest) && !slices.Contains(w.rest, "**") {
			return fs.SkipDir
		}
		return nil
	}
	w.files++
	if !match(w.rest, names) {
		return nil
	}
	real := p
	if entry.Type()&fs.ModeSymlink != 0 {
		if real, err = realPath(p); err != nil {
			return err
		}
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		w.found = append(w.found, file{path: filepath.Join(w.base, rel), rel: rel, real: real, to: info.Size()})
	}
	return nil
}

// realPath is absolute and holds no links.
func realPath(p string) (string, error) {
	p, err := filepath.EvalSymlinks(p)
	if err != nil {
		return "", err
	}
	return filepath.Abs(p)
}

// match holds a path's names against a pattern's.
func match(pattern, names []string) bool {
	for i, p := range pattern {
		if p == "**" {
			if i == len(pattern)-1 {
				return len(names) > i
			}
			for skip := i; skip <= len(names); skip++ {
				if match(pattern[i+1:], names[skip:]) {
					return true
				}
			}
			return false
		}
		if i >= len(names) {
			return false
		}
		if ok, _ := path.Match(p, names[i]); !ok {
			return false
		}
	}
	return len(names) == len(pattern)
}
