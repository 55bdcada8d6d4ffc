// Package nvrtc compiles CUDA C++ with NVIDIA's run-time compiler, which needs
// neither a GPU nor a toolkit, and keeps what it compiled on disk.
package nvrtc

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dl"
)

// floats is what kernels include as "floats.cuh", the name that it has here too.
//
//go:embed floats.cuh
var floats string

// Compiler is an open NVRTC library. It may be used by several goroutines.
type Compiler struct {
	path         string
	bytes        int64 // the library's size: builds of one version differ in it
	major, minor int
	archs        []int // compute capabilities that it compiles for: 90

	createProgram, compileProgram, destroyProgram dl.Proc
	logSize, log, cubinSize, cubin, errorString   dl.Proc
}

// spec is where NVRTC of a major version is looked for.
func spec(majors ...int) dl.Spec {
	s := dl.Spec{
		Name:   "NVRTC",
		Env:    "GORUN_NVRTC_LIB",
		Beside: []string{"libnvrtc-builtins.so.*"},
		Gives:  "the compilation of GPU kernels",
	}
	var packages []string
	for _, m := range majors {
		s.Files = append(s.Files, fmt.Sprintf("libnvrtc.so.%d", m))
		folder, pip := fmt.Sprintf("nvidia/cu%d/lib", m), "nvidia-cuda-nvrtc"
		if m == 12 {
			folder, pip = "nvidia/cuda_nvrtc/lib", "nvidia-cuda-nvrtc-cu12"
		}
		s.Folders = append(s.Folders, folder)
		packages = append(packages, pip)
	}
	s.Install = "a CUDA toolkit, or with pip " + strings.Join(packages, " or ")
	return s
}

// newest and oldest are the major versions that are looked for. Older ones know
// no sm_90a.
const newest, oldest = 13, 12

// Load opens NVRTC, once for the process. Where a CUDA driver is present, it takes
// the newest version whose kernels the driver can load, else the newest.
func Load() (*Compiler, error) {
	top := newest
	if major, _, err := cuda.DriverVersion(); err == nil {
		top = max(min(major, newest), oldest)
	}
	mu.Lock()
	defer mu.Unlock()
	key := fmt.Sprint(top, os.Getenv("GORUN_NVRTC_LIB"))
	if c := loaded[key]; c != nil {
		return c, nil
	}
	var majors []int
	for m := top; m >= oldest; m-- {
		majors = append(majors, m)
	}
	c, err := open(spec(majors...))
	if err != nil {
		return nil, err
	}
	loaded[key] = c
	return c, nil
}

var (
	mu     sync.Mutex
	loaded = map[string]*Compiler{} // by what Load went by
)

func open(s dl.Spec) (*Compiler, error) {
	lib, err := dl.Open(s)
	if err != nil {
		return nil, err
	}
	c := &Compiler{path: lib.Path}
	var version, archCount, archList dl.Proc
	for _, f := range []struct {
		proc *dl.Proc
		name string
	}{
		{&version, "nvrtcVersion"},
		{&archCount, "nvrtcGetNumSupportedArchs"},
		{&archList, "nvrtcGetSupportedArchs"},
		{&c.createProgram, "nvrtcCreateProgram"},
		{&c.compileProgram, "nvrtcCompileProgram"},
		{&c.destroyProgram, "nvrtcDestroyProgram"},
		{&c.logSize, "nvrtcGetProgramLogSize"},
		{&c.log, "nvrtcGetProgramLog"},
		{&c.cubinSize, "nvrtcGetCUBINSize"},
		{&c.cubin, "nvrtcGetCUBIN"},
		{&c.errorString, "nvrtcGetErrorString"},
	} {
		if *f.proc, err = lib.Proc(f.name); err != nil {
			return nil, err
		}
	}
	var major, minor, n int32
	if err := c.check("nvrtcVersion", version.Call(uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))); err != nil {
		return nil, err
	}
	c.major, c.minor = int(major), int(minor)
	if c.major < oldest {
		return nil, fmt.Errorf("NVRTC: %s is version %d.%d, and %d.0 is needed: install %s", lib.Path, c.major, c.minor, oldest, s.Install)
	}
	if err := c.check("nvrtcGetNumSupportedArchs", archCount.Call(uintptr(unsafe.Pointer(&n)))); err != nil {
		return nil, err
	}
	archs := make([]int32, max(n, 1))
	if err := c.check("nvrtcGetSupportedArchs", archList.Call(uintptr(unsafe.Pointer(&archs[0])))); err != nil {
		return nil, err
	}
	for _, a := range archs[:n] {
		c.archs = append(c.archs, int(a))
	}
	if info, err := os.Stat(lib.Path); err == nil { // no path where the loader's own had it
		c.bytes = info.Size()
	}
	return c, nil
}

func (c *Compiler) check(call string, r uintptr) error {
	if int32(r) == 0 {
		return nil
	}
	return fmt.Errorf("NVRTC %d.%d: %s: %s", c.major, c.minor, call, dl.GoString(c.errorString.Call(r)))
}

// Version is the compiler's: 13, 0.
func (c *Compiler) Version() (major, minor int) { return c.major, c.minor }

// Compile compiles text for arch, "sm_90a", with NVRTC's own options besides. It may
// include floats.cuh, which stands beside this file, and nothing else. The name stands in the compiler's messages. log holds its warnings, and with an
// error what it found wrong, which stands in the error too.
func (c *Compiler) Compile(name, text, arch string, options ...string) (cubin []byte, log string, err error) {
	if err := c.knows(arch); err != nil {
		return nil, "", fmt.Errorf("compile %s: %w", name, err)
	}
	var program uintptr
	source, file := dl.CString(text), dl.CString(name)
	// Lists of Go pointers, so that the collector sees what they point to.
	headers, included := []*byte{dl.CString(floats)}, []*byte{dl.CString("floats.cuh")}
	created := c.check("nvrtcCreateProgram", c.createProgram.Call(uintptr(unsafe.Pointer(&program)),
		uintptr(unsafe.Pointer(source)), uintptr(unsafe.Pointer(file)),
		uintptr(len(headers)), uintptr(unsafe.Pointer(&headers[0])), uintptr(unsafe.Pointer(&included[0]))))
	runtime.KeepAlive(headers)
	runtime.KeepAlive(included)
	if created != nil {
		return nil, "", fmt.Errorf("compile %s: %w", name, created)
	}
	defer func() {
		if e := c.check("nvrtcDestroyProgram", c.destroyProgram.Call(uintptr(unsafe.Pointer(&program)))); e != nil {
			err = errors.Join(err, e)
		}
	}()

	list := []*byte{dl.CString("--gpu-architecture=" + arch)}
	for _, o := range options {
		list = append(list, dl.CString(o))
	}
	failed := c.check("nvrtcCompileProgram", c.compileProgram.Call(program, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0]))))
	runtime.KeepAlive(list)

	text0, err := c.output(program, "nvrtcGetProgramLog", c.logSize, c.log)
	log = strings.TrimRight(string(text0), "\x00\n")
	if failed != nil {
		return nil, log, errors.Join(fmt.Errorf("compile %s for %s: %w\n%s", name, arch, failed, log), err)
	}
	if err == nil {
		cubin, err = c.output(program, "nvrtcGetCUBIN", c.cubinSize, c.cubin)
	}
	if err == nil && len(cubin) == 0 {
		err = errors.New("no machine code came out")
	}
	if err != nil {
		return nil, log, fmt.Errorf("compile %s for %s: %w", name, arch, err)
	}
	return cubin, log, nil
}

// output gets one of a program's results, whose size another function tells.
func (c *Compiler) output(program uintptr, call string, sizeOf, get dl.Proc) ([]byte, error) {
	var n uintptr
	if err := c.check(call+"Size", sizeOf.Call(program, uintptr(unsafe.Pointer(&n)))); err != nil || n == 0 {
		return nil, err
	}
	b := make([]byte, n)
	return b, c.check(call, get.Call(program, uintptr(unsafe.Pointer(&b[0]))))
}

// knows tells early, and in the user's words, that the compiler is too old for
// the GPU.
func (c *Compiler) knows(arch string) error {
	var n int
	if _, err := fmt.Sscanf(arch, "sm_%d", &n); err != nil {
		return fmt.Errorf("%q is no architecture such as sm_90", arch)
	}
	if !slices.Contains(c.archs, n) {
		return fmt.Errorf("NVRTC %d.%d (%s) does not compile for %s, only for %v: install a version that does", c.major, c.minor, c.path, arch, c.archs)
	}
	return nil
}
