// Command api lists what the public packages export, in docs/api, and says which
// changes would break programs: since the list was written, and since the last release.
//
//	go run ./.ci/api           check
//	go run ./.ci/api -update   write docs/api anew
//
// A line of the list is a promise to importers; docs/embedding.md says which. A line that
// is gone is an incompatible change. A method that was added to an interface changes the
// interface's line, for who implements it lacks the method.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// public are the packages that the promise is about.
var public = []string{
	"comm", "comm/compress", "ddp", "zero",
	"runtime/device", "runtime/dtype", "runtime/param", "runtime/tensor",
}

const (
	folder = "docs/api"
	// changes holds the lines of the last release that are gone since.
	changes = folder + "/changes.txt"
)

func main() {
	update := flag.Bool("update", false, "write "+folder+" anew")
	flag.Parse()
	if err := run(os.Stdout, ".", public, *update); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// run checks, or updates, the lists of the module in dir.
func run(out io.Writer, dir string, packages []string, update bool) error {
	now, err := load(dir, packages)
	if err != nil {
		return err
	}
	tag, released, err := lastRelease(dir)
	if err != nil {
		return err
	}
	gone, _ := compare(released, now)
	if len(gone) > 0 && !strings.HasPrefix(tag, "v0.") {
		return fmt.Errorf("these lines of release %s are gone, which breaks programs that import gorun and needs a new major version:\n%s", tag, indent(gone))
	}
	if update {
		return write(dir, now, gone)
	}

	old, err := read(dir)
	if err != nil {
		return err
	}
	if removed, added := compare(old, now); len(removed)+len(added) > 0 {
		return fmt.Errorf("%s is not what the code exports.\nincompatible, gone or changed:\n%scompatible, or the other half of a change:\n%s"+
			"where that is intended, run go run ./.ci/api -update and commit %s", folder, indent(removed), indent(added), folder)
	}
	listed, err := lines(filepath.Join(dir, changes))
	if err != nil {
		return err
	}
	if !slices.Equal(listed, gone) {
		return fmt.Errorf("%s must list what is incompatible with release %s, which is:\n%srun go run ./.ci/api -update and commit it", changes, tag, indent(gone))
	}
	if tag == "" {
		fmt.Fprintf(out, "%d packages export %d names, fields and methods, as listed; there is no release to compare with\n", len(now), count(now))
		return nil
	}
	fmt.Fprintf(out, "%d packages export %d names, fields and methods, as listed; %d lines of release %s are gone, as %s says\n", len(now), count(now), len(gone), tag, changes)
	return nil
}

// api is the lines of each package.
type api map[string][]string

func count(a api) (n int) {
	for _, l := range a {
		n += len(l)
	}
	return n
}

// compare lists the lines of old that new lacks, and the other way round, each with its
// package before it.
func compare(old, new api) (removed, added []string) {
	return missing(old, new), missing(new, old)
}

func missing(from, in api) (list []string) {
	for pkg, ls := range from {
		for _, l := range ls {
			if !slices.Contains(in[pkg], l) {
				list = append(list, pkg+": "+l)
			}
		}
	}
	slices.Sort(list)
	return list
}

func indent(list []string) string {
	if len(list) == 0 {
		return "  none\n"
	}
	return "  " + strings.Join(list, "\n  ") + "\n"
}

// fileOf is where a package's lines lie; packageOf goes back.
func fileOf(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") + ".txt" }

func packageOf(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(file, ".txt"), "-", "/")
}

func read(dir string) (api, error) {
	files, err := filepath.Glob(filepath.Join(dir, folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	a := api{}
	for _, f := range files {
		if filepath.Base(f) == filepath.Base(changes) {
			continue
		}
		if a[packageOf(filepath.Base(f))], err = lines(f); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// lines are those of a file, which need not exist.
func lines(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return split(b), err
}

func split(b []byte) []string {
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return l == "" })
}

func write(dir string, a api, gone []string) error {
	target := filepath.Join(dir, folder)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o777); err != nil {
		return err
	}
	for pkg, ls := range a {
		if err := os.WriteFile(filepath.Join(target, fileOf(pkg)), []byte(strings.Join(ls, "\n")+"\n"), 0o666); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, changes), []byte(strings.Join(gone, "\n")+"\n"), 0o666)
}

// lastRelease is the newest tag of a release that HEAD comes from, and the lists that it
// holds; "" where there is none.
func lastRelease(dir string) (tag string, a api, err error) {
	tags, err := git(dir, "tag", "--list", "v[0-9]*", "--merged", "HEAD", "--sort=-version:refname")
	if err != nil {
		return "", nil, err
	}
	for _, t := range split(tags) {
		if !strings.Contains(t, "-") { // no v1.0.0-rc1
			tag = t
			break
		}
	}
	if tag == "" {
		return "", nil, nil
	}
	files, err := git(dir, "ls-tree", "--name-only", tag, folder+"/")
	if err != nil {
		return "", nil, err
	}
	a = api{}
	for _, f := range split(files) {
		if f == changes {
			continue
		}
		b, err := git(dir, "show", tag+":"+f)
		if err != nil {
			return "", nil, err
		}
		a[packageOf(filepath.Base(f))] = split(b)
	}
	return tag, a, nil
}

func git(dir string, args ...string) ([]byte, error) {
	c := exec.Command("git", args...)
	c.Dir = dir
	out, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("git %s: %s", strings.Join(args, " "), exit.Stderr)
	}
	return out, err
}
