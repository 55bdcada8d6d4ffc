// Package nccltest puts a fake in the place of NCCL, so that collectives on the
// memory of GPUs are tested on machines without one. The ranks of a communicator are
// goroutines of one process, with a fake GPU of package cudatest each. The fake is C,
// built by gcc when a test first wants it, and called through the same interface as
// the library.
package nccltest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

//go:embed testdata/fakenccl.c
var source []byte

// variable is where package nccl looks for the library first.
const variable = "GORUN_NCCL_LIB"

// Results that calls can be made to fail with.
const (
	CUDAError     = 1
	SystemError   = 2
	InternalError = 3
	RemoteError   = 6
)

// Library is an installed fake.
type Library struct {
	Path string
	lib  *dl.Library
	t    testing.TB
}

// Fake makes package nccl use a fake, over the fake driver d, until the test ends. It
// is of release 2.28.3. Each test's is a new one. The test fails if communicators or
// memory are left over then, or if the fake was called as NCCL must not be. It is
// skipped where there is no gcc; the feature's name is "gcc".
func Fake(t testing.TB, d *cudatest.Driver) *Library {
	t.Helper()
	image, err := build()
	if errors.Is(err, exec.ErrNotFound) {
		testenv.Skip(t, "gcc", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libfakenccl.so") // a file of its own has variables of its own
	if err := os.WriteFile(path, image, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, path)
	lib, err := dl.Open(dl.Spec{Name: "the fake NCCL", Env: variable})
	if err != nil {
		t.Fatal(err)
	}
	l := &Library{Path: path, lib: lib, t: t}
	if d != nil {
		l.call("fake_nccl_driver", address(d.Path))
	}
	t.Cleanup(l.check)
	return l
}

// build compiles the fake, once.
var build = sync.OnceValues(func() ([]byte, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fakenccl")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c, out := filepath.Join(dir, "fakenccl.c"), filepath.Join(dir, "lib.so")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(gcc, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fvisibility=hidden", "-o", out, c, "-lpthread", "-ldl")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, text)
	}
	return os.ReadFile(out)
})

// check is the end of the test.
func (l *Library) check() {
	l.t.Helper()
	first := make([]byte, 256)
	if n := l.call("fake_nccl_violations", uintptr(unsafe.Pointer(&first[0]))); n > 0 {
		l.t.Errorf("NCCL was called %d times as it must not be: %s", n, dl.GoString(uintptr(unsafe.Pointer(&first[0]))))
	}
	for _, what := range []string{"communicators", "memory"} {
		if n := l.call("fake_nccl_live", address(what)); n != 0 {
			l.t.Errorf("NCCL: %d %s left over", n, what)
		}
	}
}

// call calls one of the fake's own functions.
//
//go:uintptrescapes
func (l *Library) call(name string, args ...uintptr) int {
	p, err := l.lib.Proc(name)
	if err != nil {
		l.t.Helper()
		l.t.Fatal(err)
	}
	return int(int32(p.Call(args...)))
}

// texts keeps what address returned alive: tests have few of them.
var texts sync.Map

func address(s string) uintptr {
	p := dl.CString(s)
	texts.Store(p, nil)
	return uintptr(unsafe.Pointer(p))
}

// Version makes the fake be another release: 22203 is 2.22.3.
func (l *Library) Version(code int) { l.call("fake_nccl_version", uintptr(code)) }

// Fail makes a rank's call fail with a result, after as many calls as given have
// passed; any rank's for -1. Result 0 ends that. Beside functions, "making" is the
// communicator after the call that starts to make it, "carrying" is a call when it is
// carried out, "async" is what is found between calls, and "summing" makes rank 0 get
// wrong data.
func (l *Library) Fail(call string, rank, result, after int) {
	l.call("fake_nccl_fail", address(call), uintptr(rank), uintptr(result), uintptr(after))
}

// Calls is how often a function was called.
func (l *Library) Calls(call string) int { return l.call("fake_nccl_calls", address(call)) }

// Async makes calls return before they are carried out, as on a GPU. The stream is
// held until then, but copies, which the fake driver does at once, do not wait.
func (l *Library) Async(on bool) { l.call("fake_nccl_async", flag(on)) }

// Deaf keeps communicators from being made, and calls from being carried out.
func (l *Library) Deaf(on bool) { l.call("fake_nccl_deaf", flag(on)) }

// Config is what the latest communicator was asked for.
func (l *Library) Config() (name string, maxCTAs int) {
	b := make([]byte, 64)
	n := l.call("fake_nccl_config", uintptr(unsafe.Pointer(&b[0])))
	return dl.GoString(uintptr(unsafe.Pointer(&b[0]))), n
}

func flag(on bool) uintptr {
	if on {
		return 1
	}
	return 0
}
