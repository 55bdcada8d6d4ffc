package dl

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// gcc is found before a test hides it.
var (
	gcc, noGCC = exec.LookPath("gcc")
	fullPath   = os.Getenv("PATH")
)

// build compiles a shared library into folder.
func build(t *testing.T, folder, file, source string, flags ...string) string {
	t.Helper()
	if noGCC != nil {
		testenv.Skip(t, "gcc", noGCC.Error())
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	c, out := filepath.Join(t.TempDir(), "lib.c"), filepath.Join(folder, file)
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(gcc, append([]string{"-shared", "-fPIC", "-Wall", "-Werror", "-o", out, c}, flags...)...)
	cmd.Env = append(os.Environ(), "PATH="+fullPath) // gcc's own parts
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, text)
	}
	return out
}

// alone hides this machine's toolkits and Python environments, except for what
// the test itself sets up afterwards.
func alone(t *testing.T) {
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "GORUN_PROBE_LIB"} {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", t.TempDir())
}

const answer = "int answer(void) { return %d; }"

func probe() Spec {
	return Spec{
		Name: "probe", Files: []string{"libgorunprobe.so.2", "libgorunprobe.so.1"}, Env: "GORUN_PROBE_LIB",
		Folders: []string{"nvidia/probe/lib"}, Gives: "answers", Install: "the probe package",
	}
}

func ask(t *testing.T, l *Library) int {
	t.Helper()
	p, err := l.Proc("answer")
	if err != nil {
		t.Fatal(err)
	}
	return int(int32(p.Call()))
}

func TestWhereALibraryIsFound(t *testing.T) {
	for i, c := range []struct {
		name  string
		setUp func(t *testing.T, root string) (folder string)
	}{
		{"toolkit lib64", func(t *testing.T, root string) string { t.Setenv("CUDA_HOME", root); return "lib64" }},
		{"toolkit target", func(t *testing.T, root string) string { t.Setenv("CUDA_PATH", root); return "targets/x86_64-linux/lib" }},
		{"virtual environment", func(t *testing.T, root string) string {
			t.Setenv("VIRTUAL_ENV", root)
			return "lib/python3.11/site-packages/nvidia/probe/lib"
		}},
		{"conda", func(t *testing.T, root string) string { t.Setenv("CONDA_PREFIX", root); return "lib" }},
		{"conda's pip", func(t *testing.T, root string) string {
			t.Setenv("CONDA_PREFIX", root)
			return "lib/python3.11/site-packages/nvidia/probe/lib"
		}},
		{"python3", func(t *testing.T, root string) string {
			script := fmt.Sprintf("#!/bin/sh\necho\necho relative\necho %s/nowhere\necho %s/site\n", root, root)
			if err := os.WriteFile(filepath.Join(root, "python3"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", root)
			return "site/nvidia/probe/lib"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			alone(t)
			root := t.TempDir()
			want := build(t, filepath.Join(root, c.setUp(t, root)), "libgorunprobe.so.1", fmt.Sprintf(answer, 40+i))
			l, err := Open(probe())
			if err != nil {
				t.Fatal(err)
			}
			if l.Path != want || ask(t, l) != 40+i {
				t.Errorf("opened %s, which answers %d", l.Path, ask(t, l))
			}
		})
	}
}

// The first name is preferred, wherever it lies.
func TestNamesAreTriedInOrder(t *testing.T) {
	alone(t)
	first, second := t.TempDir(), t.TempDir()
	t.Setenv("CUDA_HOME", first)
	t.Setenv("CUDA_PATH", second)
	build(t, first+"/lib64", "libgorunprobe.so.1", fmt.Sprintf(answer, 1))
	build(t, second+"/lib64", "libgorunprobe.so.2", fmt.Sprintf(answer, 2))
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	if n := ask(t, l); n != 2 {
		t.Errorf("version %d was opened", n)
	}
}

func TestTheVariableWins(t *testing.T) {
	alone(t)
	root := t.TempDir()
	t.Setenv("CUDA_HOME", root)
	build(t, root+"/lib64", "libgorunprobe.so.1", fmt.Sprintf(answer, 1))
	own := build(t, t.TempDir(), "anything.so", fmt.Sprintf(answer, 7))
	t.Setenv("GORUN_PROBE_LIB", own)
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	if l.Path != own || ask(t, l) != 7 {
		t.Errorf("opened %s", l.Path)
	}
	for _, bad := range []string{"/nowhere/lib.so", "lib.so"} {
		t.Setenv("GORUN_PROBE_LIB", bad)
		if _, err := Open(probe()); err == nil || !strings.Contains(err.Error(), "GORUN_PROBE_LIB") || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestTheErrorTellsWhatToDo(t *testing.T) {
	alone(t)
	root := t.TempDir()
	t.Setenv("CUDA_HOME", root)
	if err := os.Mkdir(root+"/lib64", 0o755); err != nil {
		t.Fatal(err)
	}
	says := func(err error, wants ...string) {
		t.Helper()
		if !errors.Is(err, ErrNotFound) {
			t.Fatalf("got %v", err)
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
	_, err := Open(probe())
	says(err, "probe", "answers", "libgorunprobe.so.2 or libgorunprobe.so.1", "LD_LIBRARY_PATH", root+"/lib64", "the probe package", "GORUN_PROBE_LIB")
	if strings.Contains(err.Error(), "does not open") {
		t.Errorf("what is absent is called broken: %v", err)
	}

	// One that is there and broken, and one that lacks another, are told.
	if err := os.WriteFile(root+"/lib64/libgorunprobe.so.2", []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	gone := build(t, t.TempDir(), "libgorungone.so", "int gone(void) { return 1; }", "-Wl,-soname,libgorungone.so")
	build(t, root+"/lib64", "libgorunprobe.so.1", "int gone(void); int answer(void) { return gone(); }", gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	_, err = Open(probe())
	says(err, "does not open: "+root+"/lib64/libgorunprobe.so.2", "does not open: libgorungone.so")
}

// A library that opens another by its bare name finds it in its own folder.
func TestWhatALibraryOpensItself(t *testing.T) {
	folder := t.TempDir()
	build(t, folder, "libgorunpart.so.3", "int part(void) { return 33; }", "-Wl,-soname,libgorunpart.so.3")
	whole := build(t, folder, "libgorunwhole.so", `
		#include <dlfcn.h>
		int answer(void) {
			void *h = dlopen("libgorunpart.so.3", RTLD_NOW);
			return h ? ((int (*)(void))dlsym(h, "part"))() : -1;
		}`, "-ldl")
	t.Setenv("GORUN_PROBE_LIB", whole)
	s := probe()
	l, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	if n := ask(t, l); n != -1 {
		t.Fatalf("it answers %d without help: the test shows nothing", n)
	}
	s.Beside = []string{"libgorunpart.so.*"}
	if l, err = Open(s); err != nil {
		t.Fatal(err)
	}
	if n := ask(t, l); n != 33 {
		t.Errorf("it answers %d", n)
	}
	if err := os.WriteFile(filepath.Join(folder, "libgorunpart.so.4"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s); err == nil || !strings.Contains(err.Error(), "libgorunpart.so.4") {
		t.Errorf("a broken part: %v", err)
	}
}

func TestProcThatIsMissing(t *testing.T) {
	t.Setenv("GORUN_PROBE_LIB", build(t, t.TempDir(), "lib.so", fmt.Sprintf(answer, 1)))
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := l.Proc("question"); err == nil || p != 0 || !strings.Contains(err.Error(), "probe: ") || !strings.Contains(err.Error(), "question") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestCalls(t *testing.T) {
	t.Setenv("GORUN_PROBE_LIB", build(t, t.TempDir(), "lib.so", `
		#include <stdint.h>
		#include <string.h>
		struct id { char bytes[128]; };
		int64_t sum(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h, int64_t i, int64_t j, int64_t k, int64_t l) {
			return a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 8*h + 9*i + 10*j + 11*k + 12*l;
		}
		int narrow(int x) { return -x; }
		const char *name(void) { return "a name"; }
		const char *null(void) { return 0; }
		long length(const char *s) { return strlen(s); }
		void store(int *p, int v) { *p = v; }
		long first(struct id s, long a) { return s.bytes[0] + 10 * s.bytes[127] + 100 * a; }
		long third(long a, long b, struct id s, long c, int *out) { *out = s.bytes[64]; return a + 2 * b + 3 * c + s.bytes[0] + s.bytes[127]; }
	`))
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	proc := func(name string) Proc {
		p, err := l.Proc(name)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if n := proc("sum").Call(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1); n != 78 {
		t.Errorf("sum of twelve is %d", n)
	}
	if n := int32(proc("narrow").Call(5)); n != -5 {
		t.Errorf("narrow result is %d", n)
	}
	if s := GoString(proc("name").Call()); s != "a name" {
		t.Errorf("name is %q", s)
	}
	if s := GoString(proc("null").Call()); s != "" {
		t.Errorf("no string is %q", s)
	}
	if n := proc("length").Call(uintptr(unsafe.Pointer(CString("seven B")))); n != 7 {
		t.Errorf("length is %d", n)
	}
	id := make([]byte, 128)
	id[0], id[64], id[127] = 1, 5, 2
	if n := proc("first").CallStruct(0, id, 3); n != 321 {
		t.Errorf("a struct first: %d", n)
	}
	var out int32
	if n := proc("third").CallStruct(2, id, 10, 20, 30, uintptr(unsafe.Pointer(&out))); n != 10+40+90+3 || out != 5 {
		t.Errorf("a struct third: %d, out %d", n, out)
	}
	for _, bad := range []func(){
		func() { proc("first").CallStruct(2, id, 3) },
		func() { proc("first").CallStruct(0, id[:16], 3) },
		func() { proc("first").CallStruct(0, id[:20], 3) },
		func() { proc("first").CallStruct(0, id, 1, 2, 3, 4, 5, 6, 7) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			bad()
		}()
	}
}

// What C writes through an address arrives, though the stack moves meanwhile.
func TestAddressesOfVariables(t *testing.T) {
	t.Setenv("GORUN_PROBE_LIB", build(t, t.TempDir(), "lib.so", "void store(int *p, int v) { *p = v; }"))
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	store, err := l.Proc("store")
	if err != nil {
		t.Fatal(err)
	}
	var down func(depth int32, room [100]byte) bool
	down = func(depth int32, room [100]byte) bool {
		var x int32
		store.Call(uintptr(unsafe.Pointer(&x)), uintptr(depth))
		if x != depth {
			return false
		}
		return depth == 0 || down(depth-1, room)
	}
	done := make(chan bool)
	for range 20 {
		go func() { done <- down(500, [100]byte{}) }()
	}
	for range 20 {
		if !<-done {
			t.Fatal("a write was lost")
		}
		runtime.GC()
	}
}

func TestACallThatKeepsItsListDoesNotAllocate(t *testing.T) {
	t.Setenv("GORUN_PROBE_LIB", build(t, t.TempDir(), "lib.so", "long same(long x) { return x; }"))
	l, err := Open(probe())
	if err != nil {
		t.Fatal(err)
	}
	same, err := l.Proc("same")
	if err != nil {
		t.Fatal(err)
	}
	list := []uintptr{7}
	if n := testing.AllocsPerRun(1000, func() { same.Call(list...) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestToolkitsAreOrderedByVersion(t *testing.T) {
	for _, c := range [][2]string{
		{"/usr/local/cuda-9.2", "/usr/local/cuda-13.0"},
		{"/usr/local/cuda", "/usr/local/cuda-12"},
		{"/usr/local/cuda-12", "/usr/local/cuda-12.4"},
	} {
		if compareVersions(c[0], c[1]) >= 0 || compareVersions(c[1], c[0]) <= 0 || compareVersions(c[0], c[0]) != 0 {
			t.Errorf("%v", c)
		}
	}
}
