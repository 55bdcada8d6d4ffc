// Package cudatest puts a fake in the place of the CUDA driver, so that what
// drives GPUs is tested on machines without one, and so that each call can be
// made to fail. The fake is C, built by gcc when a test first wants it.
//
// A fake GPU has the real driver's rules, not its arithmetic: memory is host
// memory, copies and fills work, kernels are checked and remembered but do not
// run. Its name is "Fake GPU".
package cudatest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

//go:embed testdata/fakecuda.c
var source []byte

// Machine is what the fake shows; zero values are those of one GPU of today.
type Machine struct {
	GPUs    int      // default 1; -1 is none
	Version int      // of CUDA, 12040 for 12.4; default 13000
	Memory  int64    // bytes of each GPU; default 16 GiB
	Compute int      // capability of the last GPU, 75 for 7.5; default 90, as all others have
	PCIe    bool     // joins the GPUs, and NVLink does not
	Lacks   []string // functions that the library does not have, by their names in it: "cuMemAlloc_v2"
}

// Built is the variable that names the library where it has been built before, for machines
// without gcc: the one that lacks nothing, of testdata/fakecuda.c.
const Built = "GORUN_TEST_FAKE_CUDA"

// Driver is an installed fake. Calls are named without the suffix of their
// version: "cuMemAlloc".
type Driver struct {
	Path string // of the library: GORUN_CUDA_LIB for other processes, which see a default Machine
	lib  *dl.Library
	t    testing.TB
}

// Fake makes package cuda use a fake driver with one GPU until the test ends. Each
// test's is a new one. Tests that use it cannot be parallel. The test is skipped
// where there is no gcc; the feature's name is "gcc".
func Fake(t testing.TB) *Driver {
	t.Helper()
	return FakeOf(t, Machine{})
}

// FakeOf is Fake with another machine.
func FakeOf(t testing.TB, m Machine) *Driver {
	t.Helper()
	image, err := build(m.Lacks)
	if errors.Is(err, exec.ErrNotFound) {
		testenv.Skip(t, "gcc", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	// A file of its own makes the loader map the library once more, with fresh
	// variables. It has no soname, so nobody who asks for libcuda.so.1 gets it.
	path := filepath.Join(t.TempDir(), "libfakecuda.so")
	if err := os.WriteFile(path, image, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(driver.Library.Env, path)
	lib, err := dl.Open(driver.Library)
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Path: path, lib: lib, t: t}
	gpus := m.GPUs
	switch gpus {
	case 0:
		gpus = 1
	case -1:
		gpus = 0
	}
	linked := uintptr(1)
	if m.PCIe {
		linked = 0
	}
	d.call("fake_machine", uintptr(gpus), uintptr(m.Version), uintptr(m.Memory), uintptr(m.Compute), linked)
	driver.Reset()
	t.Cleanup(driver.Reset)
	return d
}

var (
	buildMu sync.Mutex
	built   = map[string][]byte{} // by what the library lacks
)

// build compiles the fake, once for each list of what it lacks.
func build(lacks []string) ([]byte, error) {
	buildMu.Lock()
	defer buildMu.Unlock()
	key := strings.Join(lacks, ",")
	if b := built[key]; b != nil {
		return b, nil
	}
	if file := os.Getenv(Built); file != "" && key == "" {
		b, err := os.ReadFile(file)
		if err == nil {
			built[key] = b
		}
		return b, err
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fakecuda")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c, script, out := filepath.Join(dir, "fakecuda.c"), filepath.Join(dir, "symbols"), filepath.Join(dir, "lib.so")
	var local string
	for _, name := range lacks {
		local += " " + name + ";"
	}
	if local != "" {
		local = "local:" + local
	}
	for file, text := range map[string]string{c: string(source), script: "{ global: cu*; fake_*; " + local + " };"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(gcc, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fvisibility=hidden",
		"-Wl,--version-script="+script, "-o", out, c, "-lpthread")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w: %s", err, text)
	}
	b, err := os.ReadFile(out)
	if err == nil {
		built[key] = b
	}
	return b, err
}

func (d *Driver) proc(name string) dl.Proc {
	p, err := d.lib.Proc(name)
	if err != nil {
		d.t.Helper()
		d.t.Fatal(err)
	}
	return p
}

// call calls one of the fake's own functions.
//
//go:uintptrescapes
func (d *Driver) call(name string, args ...uintptr) uintptr { return d.proc(name).Call(args...) }

// Fail makes each call return code from now on, 0 ends that.
func (d *Driver) Fail(call string, code driver.Result) { d.FailAfter(call, 0, code) }

// FailAfter makes calls return code after n of them have passed.
func (d *Driver) FailAfter(call string, n int, code driver.Result) {
	d.call("fake_fail", uintptr(unsafe.Pointer(dl.CString(call))), uintptr(code), uintptr(n))
}

// Calls is how often a function was called.
func (d *Driver) Calls(call string) int {
	return int(d.call("fake_calls", uintptr(unsafe.Pointer(dl.CString(call)))))
}

// Live counts what was made and not yet released. Kinds that have none are left
// out, so that an empty map is a clean end. Functions end with their module and
// do not count.
func (d *Driver) Live() map[string]int {
	live := map[string]int{}
	for _, kind := range []string{"contexts", "streams", "events", "modules", "pools", "memory", "pinned", "registered", "opened"} {
		if n := int(d.call("fake_live", uintptr(unsafe.Pointer(dl.CString(kind))))); n != 0 {
			live[kind] = n
		}
	}
	return live
}

// Hold keeps what is recorded on a stream, a CUstream, or on all streams where that is 0,
// from being reached until Release.
func (d *Driver) Hold(stream uintptr) { d.call("fake_hold", stream, 1) }

// Release lets what Hold was called with go on.
func (d *Driver) Release(stream uintptr) { d.call("fake_hold", stream, 0) }

// DirectWrites says of what network cards write to the GPUs' memory to whom it is visible
// at once (0 nobody, 100 the GPU, 200 all GPUs), and whether cuFlushGPUDirectRDMAWrites
// makes it so. A fake GPU needs no flush otherwise, and can.
func (d *Driver) DirectWrites(ordering int, flushes bool) {
	options := uintptr(0)
	if flushes {
		options = 1
	}
	d.call("fake_direct_writes", uintptr(ordering), options)
}

// Priority is what a stream, a CUstream, was created with.
func (d *Driver) Priority(stream uintptr) int { return int(int32(d.call("fake_priority", stream))) }

// Launch is what a launch asked for.
type Launch struct {
	Function string
	Blocks   [3]int
	Threads  [3]int
	Shared   int
	Params   []byte
}

// Launches is how many kernels were launched.
func (d *Driver) Launches() int { return int(d.call("fake_launches")) }

// Last is the latest launch.
func (d *Driver) Last() Launch {
	out := new(struct {
		name   [256]byte
		shape  [7]uint32
		params [4096]byte
	})
	n := d.call("fake_last", uintptr(unsafe.Pointer(&out.name)), uintptr(unsafe.Pointer(&out.shape)), uintptr(unsafe.Pointer(&out.params)))
	s := out.shape
	end := slices.Index(out.name[:], 0)
	return Launch{
		Function: string(out.name[:end]),
		Blocks:   [3]int{int(s[0]), int(s[1]), int(s[2])},
		Threads:  [3]int{int(s[3]), int(s[4]), int(s[5])},
		Shared:   int(s[6]),
		Params:   out.params[:n],
	}
}

// Module is an image for LoadModule whose kernels have the given sizes of
// parameters, in bytes: {"add": {32}}. Cubins load too.
func Module(kernels map[string][]int) []byte {
	var b strings.Builder
	b.WriteString("fake module\n")
	for name, sizes := range kernels {
		b.WriteString(name)
		for _, n := range sizes {
			fmt.Fprintf(&b, " %d", n)
		}
		b.WriteString("\n")
	}
	return []byte(b.String())
}
