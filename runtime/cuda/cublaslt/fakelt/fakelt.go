// Package fakelt puts a fake in the place of cuBLASLt, beside cudatest's fake of
// the driver. It computes products on the host, slowly, from the arguments that the
// real library would get, and refuses those that the real one refuses: what is
// asked of cuBLASLt is provable without a GPU. The fake is C, built by gcc when a
// test first wants it.
package fakelt

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

//go:embed testdata/fakelt.c
var source string

// Variable names the file of the library for package cublaslt.
const Variable = "GORUN_CUBLASLT_LIB"

// The algorithms that the library can offer. It proposes them in this order.
const (
	Slow     = 1 // 200 µs
	Good     = 2 // 60 µs
	InPlace  = 3 // adds in the output, in no fixed order
	Short    = 4 // drops the last element of each sum, the fastest
	Hungry   = 5 // wants more workspace than there is
	Again    = 6 // Good once more
	Refused  = 7 // is proposed, but does not launch
	Restless = 8 // 20 µs, another result at every call
)

// Record is the latest product and the latest search for algorithms, as the library
// saw them: column-major.
type Record struct {
	M, N, K, LDA, LDB, LDC, LDD                                     int64
	TransA, TransB, TypeA, TypeB, TypeC, TypeD, Epilogue, Algorithm int64
	A, B, C, D, Bias, Workspace, WorkspaceBytes, Stream             uint64
	Alpha, Beta                                                     float64

	PrefWorkspace, PrefReductions uint64
	PrefAlign                     [4]uint64
	Requested                     uint64

	Products, Searches, Live int64 // calls so far; objects not destroyed
}

// Library is an installed fake.
type Library struct {
	Path string
	lib  *dl.Library
	t    testing.TB
}

// Fake makes package cublaslt open a fake until the test ends. Each test's is a new
// one, which offers Slow, Good, InPlace, Hungry, Again and Refused. Tests that use
// it cannot be parallel. The test is skipped where there is no gcc; the feature's
// name is "gcc".
func Fake(t testing.TB) *Library {
	t.Helper()
	l := &Library{Path: Build(t, 130100), t: t}
	t.Setenv(Variable, l.Path)
	var err error
	if l.lib, err = dl.Open(dl.Spec{Name: "fake cuBLASLt", Env: Variable}); err != nil {
		t.Fatal(err)
	}
	return l
}

// Build makes a fake of some version, 130100 for 13.1.0, and returns its path.
func Build(t testing.TB, version int) string {
	t.Helper()
	image, err := build(version)
	if errors.Is(err, exec.ErrNotFound) {
		testenv.Skip(t, "gcc", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	// A file of its own makes the loader map the library once more, with fresh variables.
	path := filepath.Join(t.TempDir(), "libfakelt.so")
	if err := os.WriteFile(path, image, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	mu    sync.Mutex
	built = map[int][]byte{} // by version
)

func build(version int) ([]byte, error) {
	mu.Lock()
	defer mu.Unlock()
	if b := built[version]; b != nil {
		return b, nil
	}
	dir, err := os.MkdirTemp("", "fakelt")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "lib.so")
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", fmt.Sprintf("-DVERSION=%d", version), "-o", out, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, text)
	}
	b, err := os.ReadFile(out)
	if err == nil {
		built[version] = b
	}
	return b, err
}

//go:uintptrescapes
func (l *Library) call(name string, args ...uintptr) uintptr {
	p, err := l.lib.Proc(name)
	if err != nil {
		l.t.Helper()
		l.t.Fatal(err)
	}
	return p.Call(args...)
}

// Offer says which algorithms the library proposes.
func (l *Library) Offer(ids ...int) {
	var mask uintptr
	for _, id := range ids {
		mask |= 1 << id
	}
	l.call("fake_offer", mask)
}

// Fail makes calls of one function return a status from now on; "" ends that.
func (l *Library) Fail(call string, status int) {
	l.call("fake_fail", uintptr(unsafe.Pointer(dl.CString(call))), uintptr(status))
}

// Record is what the library saw last.
func (l *Library) Record() Record {
	r := new(Record)
	l.call("fake_record", uintptr(unsafe.Pointer(r)))
	return *r
}
