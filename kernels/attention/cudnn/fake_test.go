package cudnn

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

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// builds is where the C files of testdata are compiled to, for the whole run: an
// open library stays open.
var builds string

func TestMain(m *testing.M) {
	var err error
	if builds, err = os.MkdirTemp("", "cudnn"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(builds) // what is left is in the folder for such
	os.Exit(code)
}

// compiled is a C file of testdata as a library: name, in a folder of its own. The
// test is skipped without gcc; the feature's name is "gcc".
func compiled(t testing.TB, source, name string, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		testenv.Skip(t, "gcc", err.Error())
	}
	path := filepath.Join(builds, source+strings.Join(flags, ""), name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname," + name, "-o", path, filepath.Join("testdata", source)}, flags...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", source, err, out)
	}
	return path
}

// fake is the fake cuDNN, opened, in the state in which it starts.
type fake struct {
	*library
	controls map[string]dl.Proc
}

func openFake(t testing.TB) *fake {
	t.Helper()
	t.Setenv(wanted.Env, compiled(t, "fakecudnn.c", "libcudnn.so.9"))
	lib, err := load()
	if err != nil {
		t.Fatal(err)
	}
	file, err := dl.Open(wanted)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{library: lib, controls: map[string]dl.Proc{}}
	for _, name := range []string{"fakeReset", "fakeFail", "fakePending", "fakeEngines", "fakeWorkspace", "fakeRecord", "fakeLive"} {
		if f.controls[name], err = file.Proc(name); err != nil {
			t.Fatal(err)
		}
	}
	f.controls["fakeReset"].Call()
	return f
}

// fail makes call number at of a function fail, counted from now.
func (f *fake) fail(function string, at int) {
	f.controls["fakeFail"].Call(uintptr(unsafe.Pointer(dl.CString(function))), uintptr(at))
}

// pending reports whether the failure that fail asked for is still to come.
func (f *fake) pending() bool { return int32(f.controls["fakePending"].Call()) != 0 }

// engines sets how many engines mode A and the fallback offer, how many of them
// cannot, and how many say that they are not deterministic.
func (f *fake) engines(a, fallback, bad, notes int) {
	f.controls["fakeEngines"].Call(uintptr(a), uintptr(fallback), uintptr(bad), uintptr(notes))
}

// workspace is what every plan from now on takes.
func (f *fake) workspace(bytes int64) { f.controls["fakeWorkspace"].Call(uintptr(bytes)) }

// record is what the library was given: graphs, plans and executions.
func (f *fake) record() string { return dl.GoString(f.controls["fakeRecord"].Call()) }

// live is the number of handles and descriptors that were not destroyed.
func (f *fake) live() int { return int(int32(f.controls["fakeLive"].Call())) }

// count is how many lines of the record begin with prefix.
func (f *fake) count(prefix string) int {
	return strings.Count("\n"+f.record(), "\n"+prefix)
}

// session is a session on f, its handle made.
func (f *fake) session(t testing.TB) *session {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	s, err := newSession(f.library)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// testCard is a card without a GPU behind it.
type testCard struct {
	t       testing.TB
	bound   int
	host    [][]byte // what AllocHost gave, kept alive
	scratch map[string]device.Buffer
	fails   bool
}

const scratchAt = 1 << 40 // the address of scratch memory; the second user's is twice that

func (c *testCard) String() string { return "cuda:7" }

func (c *testCard) Bind() (unbind func()) {
	runtime.LockOSThread()
	c.bound++
	return func() {
		c.bound--
		runtime.UnlockOSThread()
	}
}

func (c *testCard) Scratch(user string, n int) (device.Buffer, error) {
	if c.fails {
		return device.Buffer{}, errors.New("no memory is left")
	}
	old, ok := c.scratch[user]
	if !ok {
		old = device.At(uintptr(scratchAt*(len(c.scratch)+1)), n)
	}
	c.scratch[user] = device.At(old.Addr(), max(n, old.Len()))
	return c.scratch[user], nil
}

func (c *testCard) AllocHost(n int) (device.Buffer, error) {
	b := make([]byte, n)
	c.host = append(c.host, b)
	return device.Host(b), nil
}

// testStream is a stream without a GPU behind it.
type testStream struct {
	handle uintptr
	err    error
}

func (s *testStream) Handle() uintptr { return s.handle }
func (s *testStream) Err() error      { return s.err }
func (s *testStream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// testSDPA is an SDPA on the fake, its plans kept in folder.
func testSDPA(t testing.TB, f *fake, folder string) (*SDPA, *testCard) {
	t.Helper()
	c := &testCard{t: t, scratch: map[string]device.Buffer{}}
	a, err := open(f.library, c, cache{folder: folder, cudnn: "9.14.0", driver: "13.0 580.1", card: "a card"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.bound != 0 {
			t.Errorf("the context is bound %d times after all calls", c.bound)
		}
	})
	return a, c
}

// call is the tensors of one call, at addresses that no memory has.
type call struct {
	qkv, o, lse, do, dqkv tensor.Tensor
}

const (
	qkvAt, oAt, lseAt, doAt, dqkvAt = 1 << 32, 2 << 32, 3 << 32, 4 << 32, 5 << 32
)

func at(addr uintptr, dt dtype.DType, dims ...int) tensor.Tensor {
	return tensor.New(device.At(addr, tensor.Numel(dims)*dt.Size()), dt, dims...)
}

func tensors(B, T, H, K, D int) call {
	return call{
		qkv: at(qkvAt, dtype.BF16, B, T, H+2*K, D), dqkv: at(dqkvAt, dtype.BF16, B, T, H+2*K, D),
		o: at(oAt, dtype.BF16, B, T, H, D), do: at(doAt, dtype.BF16, B, T, H, D), lse: at(lseAt, dtype.F32, B, H, T),
	}
}

func (a *SDPA) both(s stream, c call) {
	a.attend(s, c.o, c.lse, c.qkv)
	a.differentiate(s, c.dqkv, c.do, c.o, c.lse, c.qkv)
}
