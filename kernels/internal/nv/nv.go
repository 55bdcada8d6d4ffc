// Package nv is what the CUDA implementations of the operations share on the
// host: the device, compiled kernels and scratch memory. common.cuh is what they
// share on the device.
package nv

import (
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Common is the text that Module puts before every kernel's.
//
//go:embed common.cuh
var Common string

// Env is the device that the operations of a worker run on, and what they hold on
// it. Scratch memory belongs to the operations, not to a stream: operations of one
// Env that use it must be ordered, by being on one stream or by events.
type Env struct {
	Device *cuda.Device
	SMs    int // streaming multiprocessors

	mu      sync.Mutex // guards what follows
	modules []*cuda.Module
	scratch map[string]device.Buffer  // the latest by user
	held    map[uintptr]device.Buffer // all that Close frees, by address
	fits    map[launch]int            // what Resident has asked for
}

type launch struct {
	f       *cuda.Function
	threads int
}

// NewEnv prepares operations on d. Close the Env before d.
func NewEnv(d *cuda.Device) *Env {
	return &Env{
		Device: d, SMs: d.SMs(),
		scratch: map[string]device.Buffer{}, held: map[uintptr]device.Buffer{}, fits: map[launch]int{},
	}
}

// Kernels names the kernels of a module and where Load puts them.
type Kernels map[string]**cuda.Function

// Load compiles text as Module does and looks its kernels up.
func (e *Env) Load(name, text string, kernels Kernels, options ...string) error {
	m, err := e.Module(name, text, options...)
	if err != nil {
		return err
	}
	for kernel, f := range kernels {
		if *f, err = m.Function(kernel); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Module compiles common.cuh and text for the device, or finds them compiled on
// disk. The module lives until Close. name stands in the compiler's messages.
func (e *Env) Module(name, text string, options ...string) (*cuda.Module, error) {
	m, err := nvrtc.Module(e.Device, name, Source(name, text), options...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.modules = append(e.modules, m)
	return m, nil
}

// Source is common.cuh followed by text, whose lines are counted from 1.
func Source(name, text string) string {
	return fmt.Sprintf("#line 1 \"common.cuh\"\n%s\n#line 1 %q\n%s", Common, name, text)
}

// Resident is how many blocks of f, of so many threads and no dynamic shared
// memory, the device runs at a time.
func (e *Env) Resident(f *cuda.Function, threads int) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := launch{f, threads}
	if n := e.fits[k]; n > 0 {
		return n, nil
	}
	n, err := f.Occupancy(threads, 0)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("%s: no block of %d threads fits a multiprocessor", f.Name(), threads)
	}
	e.fits[k] = n * e.SMs
	return e.fits[k], nil
}

// Scratch is at least n bytes of device memory for user, a kernel or a group of
// them that never run at once. The same memory comes back at every call, with
// what the last user left in it (zeros at first), until more is asked for. Then
// new memory takes its place, and the old stays alive until Close, for a stream
// may still use it: ask for the largest size first.
func (e *Env) Scratch(user string, n int) (device.Buffer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.scratch[user]
	if old.Len() >= n {
		return old, nil
	}
	// Growing by a half at least bounds what the old ones hold together.
	b, err := e.alloc(max(n, old.Len()+old.Len()/2))
	if err != nil {
		return device.Buffer{}, fmt.Errorf("scratch memory of %s: %w", user, err)
	}
	e.scratch[user] = b
	return b, nil
}

// Alloc is zeroed device memory that lives until Free or Close.
func (e *Env) Alloc(n int) (device.Buffer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.alloc(n)
}

func (e *Env) alloc(n int) (device.Buffer, error) {
	b, err := e.Device.Alloc(n)
	if err != nil {
		return device.Buffer{}, err
	}
	e.keep(b)
	return b, nil
}

// AllocHost is zeroed pinned host memory that lives until Free or Close.
func (e *Env) AllocHost(n int) (device.Buffer, error) {
	b, err := e.Device.AllocHost(n)
	if err != nil {
		return device.Buffer{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keep(b)
	return b, nil
}

func (e *Env) keep(b device.Buffer) {
	if b.Len() > 0 {
		e.held[b.Addr()] = b
	}
}

// Free releases what Alloc or AllocHost returned, once no stream uses it.
func (e *Env) Free(b device.Buffer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.Len() == 0 {
		return nil
	}
	delete(e.held, b.Addr())
	return e.Device.Free(b)
}

// Close frees the memory and the modules. Synchronize the streams that used them first.
func (e *Env) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, b := range e.held {
		errs = append(errs, e.Device.Free(b))
	}
	for _, m := range e.modules {
		errs = append(errs, m.Unload())
	}
	e.modules = nil
	clear(e.held)
	clear(e.scratch)
	return errors.Join(errs...)
}

// Stream is s as a CUDA stream. An operation on a GPU called with another kind of
// stream is a fault of the program: it panics.
func Stream(s device.Stream) *cuda.Stream {
	c, ok := s.(*cuda.Stream)
	if !ok {
		panic(fmt.Sprintf("kernels: a stream of %v (%T), want a CUDA stream", s.Device(), s))
	}
	return c
}

// Aligned reports whether every tensor begins at a multiple of n bytes. Tensors
// that are none do.
func Aligned(n int, ts ...tensor.Tensor) bool {
	for _, t := range ts {
		if t.Buf.Addr()%uintptr(n) != 0 {
			return false
		}
	}
	return true
}

// Flag is b as kernels take it.
func Flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// Blocks is how many blocks of size elements cover n elements.
func Blocks(n, size int) int { return (n + size - 1) / size }

// Grid is the launch of n threads in blocks of so many.
func Grid(n, threads int) cuda.Grid {
	return cuda.Grid{Blocks: cuda.Dim{X: Blocks(n, threads)}, Threads: cuda.Dim{X: threads}}
}
