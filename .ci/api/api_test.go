package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const first = `package p

import "context"

const Most = 3

var ErrGone error

type Small interface{ Do(ctx context.Context, n int) error }

type Large interface {
	Small
	Undo(n int)
}

type Options struct {
	Name   string
	Done   func(step int)
	hidden int
}

type inner struct{}

func (inner) Promoted() {}

type T struct{ inner }

func (t *T) Run(list ...string) (n int, err error) { return 0, nil }
func (t T) value()                               {}

type Kind uint8

func (k Kind) String() string { return "" }

type Alias = Kind

func Make[K float32 | float64](name string, values []K) *T { return nil }
func unexported()                                          {}
`

// Every exported name, field and method is a line; names of parameters are none of them.
func TestTheListHoldsWhatProgramsUse(t *testing.T) {
	m := newModule(t, first)
	a, err := load(m.dir, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"const Most untyped int",
		"func Make[K float32 | float64](string, []K) *T",
		"method (*T) Run(...string) (int, error)",
		"method (Kind) String() string",
		"method (T) Promoted()",
		"type Alias = Kind",
		"type Kind uint8",
		"type Large interface{Do(context.Context, int) error; Undo(int)}",
		"type Options struct",
		"type Options struct, Done func(int)",
		"type Options struct, Name string",
		"type Small interface{Do(context.Context, int) error}",
		"type T struct",
		"var ErrGone error",
	}
	if !slices.Equal(a["p"], want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(a["p"], "\n"), strings.Join(want, "\n"))
	}
}

// The life of a module: a list, a change that is compatible, a release, changes that are
// not, the next release, and v1, from which on there are none.
func TestIncompatibleChangesAreListedBeforeV1AndRefusedBehind(t *testing.T) {
	m := newModule(t, first)
	m.fails("docs/api is not what the code exports", "type Options struct, Name string")
	m.update()
	m.passes("1 packages export 14 names, fields and methods, as listed; there is no release")

	m.edit("Name   string", "Name, More string")
	m.fails("gone or changed:\n  none\ncompatible, or the other half of a change:\n  p: type Options struct, More string")
	m.update()
	m.passes("15 names")
	m.commit("v0.1.0")
	m.passes("0 lines of release v0.1.0 are gone")

	m.edit("Do(ctx context.Context, n int) error", "Do(context context.Context, number int) error") // a name
	m.passes("0 lines")
	m.edit("Undo(n int)", "Undo(n int); Redo()") // who implements Large lacks Redo
	m.fails("gone or changed:\n  p: type Large interface{Do(context.Context, int) error; Undo(int)}\n")
	m.update()
	m.passes("1 lines of release v0.1.0 are gone, as docs/api/changes.txt says")
	m.write("docs/api/changes.txt", "")
	m.fails("docs/api/changes.txt must list what is incompatible with release v0.1.0", "p: type Large interface{")
	m.update()
	m.commit("v0.2.0")
	m.fails("docs/api/changes.txt must list", "release v0.2.0, which is:\n  none")
	m.update()
	m.passes("0 lines of release v0.2.0")
	m.commit("v1.0.0")
	m.commit("v1.1.0-rc1") // is none

	m.edit("Most = 3", "Fewest = 3")
	m.fails("these lines of release v1.0.0 are gone", "needs a new major version", "p: const Most untyped int")
	if err := run(&m.out, m.dir, []string{"p"}, true); err == nil {
		t.Error("-update has accepted a change that v1 forbids")
	}
	m.edit("Fewest = 3", "Most, Fewest = 3, 1")
	m.update()
	m.passes("16 names")
}

func TestPackagesThatDoNotBuildAreSaid(t *testing.T) {
	m := newModule(t, "package p\n\nfunc F() { return 1 }\n")
	m.fails("go list")
}

// module is a module of one package, under git.
type module struct {
	t   *testing.T
	dir string
	out strings.Builder
}

func newModule(t *testing.T, source string) *module {
	m := &module{t: t, dir: t.TempDir()}
	m.write("go.mod", "module example.com/m\n\ngo 1.26\n")
	m.write("p/p.go", source)
	m.git("init", "-q")
	m.commit("")
	return m
}

func (m *module) write(name, text string) {
	file := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		m.t.Fatal(err)
	}
}

func (m *module) edit(old, new string) {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, "p/p.go"))
	if err != nil || !strings.Contains(string(b), old) {
		m.t.Fatalf("no %q in the source, or %v", old, err)
	}
	m.write("p/p.go", strings.Replace(string(b), old, new, 1))
}

func (m *module) git(args ...string) {
	m.t.Helper()
	c := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
	c.Dir = m.dir
	if out, err := c.CombinedOutput(); err != nil {
		m.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (m *module) commit(tag string) {
	m.t.Helper()
	m.git("add", ".")
	m.git("commit", "-q", "--allow-empty", "-m", "change")
	if tag != "" {
		m.git("tag", tag)
	}
}

func (m *module) update() {
	m.t.Helper()
	if err := run(&m.out, m.dir, []string{"p"}, true); err != nil {
		m.t.Fatal(err)
	}
}

func (m *module) passes(want string) {
	m.t.Helper()
	m.out.Reset()
	if err := run(&m.out, m.dir, []string{"p"}, false); err != nil || !strings.Contains(m.out.String(), want) {
		m.t.Errorf("got %q, %v, want %q", m.out.String(), err, want)
	}
}

func (m *module) fails(want ...string) {
	m.t.Helper()
	err := run(&m.out, m.dir, []string{"p"}, false)
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			m.t.Errorf("got %v, want an error with %q", err, w)
		}
	}
}
