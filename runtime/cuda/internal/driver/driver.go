// Package driver opens the CUDA driver, libcuda.so.1, and holds the functions
// that the project calls.
package driver

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Library is where the driver is looked for.
var Library = dl.Spec{
	Name:    "the CUDA driver",
	Files:   []string{"libcuda.so.1"},
	Env:     "GORUN_CUDA_LIB",
	Gives:   "NVIDIA GPUs",
	Install: "the NVIDIA driver (525 or later)",
}

// Oldest is the least version of the CUDA API that a driver must have, as
// cuDriverGetVersion counts: 1000 for a major, 10 for a minor version.
const Oldest = 12000

var (
	mu   sync.Mutex
	load = sync.OnceValues(open)
)

// Load opens and initialises the driver, once for the process: it returns the
// same API, or the same error, each time.
func Load() (*API, error) {
	mu.Lock()
	l := load
	mu.Unlock()
	return l()
}

// Reset lets the next Load open the driver anew. For tests, which put a fake in
// the driver's place.
func Reset() {
	mu.Lock()
	defer mu.Unlock()
	load = sync.OnceValues(open)
}

func open() (*API, error) {
	lib, err := dl.Open(Library)
	if err != nil {
		return nil, err
	}
	a := &API{Path: lib.Path}
	missing := map[string]error{}
	for _, f := range a.table() {
		if *f.proc, err = lib.Proc(f.name); err != nil {
			missing[f.name] = err
		}
	}
	// The version comes first: an old driver also lacks functions, but what its
	// user has to know is that it is old.
	for _, f := range a.start() {
		if err := missing[f.name]; err != nil {
			return nil, err
		}
	}
	var version int32
	if r := Result(a.DriverGetVersion.Call(uintptr(unsafe.Pointer(&version)))); r != 0 {
		return nil, a.Error("", "cuDriverGetVersion", r)
	}
	a.Version = int(version)
	if a.Version < Oldest {
		return nil, fmt.Errorf("%s: %s knows CUDA %s, and %s is needed: install %s",
			Library.Name, lib.Path, VersionText(a.Version), VersionText(Oldest), Library.Install)
	}
	for _, f := range a.table() {
		if err := missing[f.name]; err != nil && a.Version >= f.since {
			return nil, fmt.Errorf("%w, though it knows CUDA %s", err, VersionText(a.Version))
		}
	}
	if r := Result(a.Init.Call(0)); r != 0 {
		return nil, a.Error("", "cuInit", r)
	}
	return a, nil
}

// VersionText turns 12040 into "12.4".
func VersionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
