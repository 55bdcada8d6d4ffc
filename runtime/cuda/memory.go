package cuda

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
)

// allocation is one piece of memory that a Device keeps account of.
type allocation struct {
	bytes int
	from  source
	pool  *Pool
}

type source uint8

const (
	plain  source = iota // cuMemAlloc
	pinned               // cuMemHostAlloc
	pooled               // cuMemAllocFromPoolAsync
	peer                 // cuIpcOpenMemHandle
)

func (a allocation) buffer(addr uintptr) device.Buffer {
	if a.from == pinned {
		return device.Host(unsafe.Slice(pointer(addr), a.bytes))
	}
	return device.At(addr, a.bytes)
}

// pointer turns an address of C's memory into a pointer.
func pointer(addr uintptr) *byte { return *(**byte)(unsafe.Pointer(&addr)) }

// clearTimeout bounds how long Alloc waits for its memory to be zeroed, which
// other work on the GPU may hold up.
const clearTimeout = 2 * time.Minute

// Memory returns the GPU's free and total memory in bytes, as all processes
// together see it.
func (d *Device) Memory() (free, total int64, err error) {
	var f, t uint64
	if r := d.call(d.api.MemGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))); r != 0 {
		return 0, 0, d.fail(r, "cuMemGetInfo")
	}
	return int64(f), int64(t), nil
}

// Held returns how many bytes of device memory live that were allocated through
// this handle.
func (d *Device) Held() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// Peak returns the most that Held has returned, or would have.
func (d *Device) Peak() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peak
}

// Alloc returns n zeroed bytes of device memory, aligned to 256. It waits for the
// zeroing, so that every stream sees it. It fails with an *OutOfMemoryError where
// the memory does not suffice.
func (d *Device) Alloc(n int) (device.Buffer, error) {
	if n == 0 {
		return device.Buffer{}, nil
	}
	if n < 0 {
		return device.Buffer{}, fmt.Errorf("%s: cannot allocate %d bytes", d, n)
	}
	var addr uintptr
	if r := d.call(d.api.MemAlloc, uintptr(unsafe.Pointer(&addr)), uintptr(n)); r != 0 {
		return device.Buffer{}, d.outOfMemory(d.fail(r, "cuMemAlloc(%d)", n), n)
	}
	b := device.At(addr, n)
	d.keep(addr, allocation{bytes: n, from: plain})
	ctx, cancel := context.WithTimeoutCause(context.Background(), clearTimeout,
		fmt.Errorf("%s: %d new bytes are not zeroed after %v: other work holds up the GPU", d, n, clearTimeout))
	defer cancel()
	d.clear.Clear(b)
	if err := d.clear.Synchronize(ctx); err != nil {
		d.release(b) // the first error says more
		return device.Buffer{}, err
	}
	return b, nil
}

// AllocHost returns n zeroed bytes of pinned host memory, which every GPU copies
// from and to at full speed and reaches at the same address.
func (d *Device) AllocHost(n int) (device.Buffer, error) {
	if n == 0 {
		return device.Buffer{}, nil
	}
	if n < 0 {
		return device.Buffer{}, fmt.Errorf("%s: cannot allocate %d bytes of host memory", d, n)
	}
	const portable = 1 // pinned for all contexts
	var addr uintptr
	if r := d.call(d.api.MemHostAlloc, uintptr(unsafe.Pointer(&addr)), uintptr(n), portable); r != 0 {
		return device.Buffer{}, d.fail(r, "cuMemHostAlloc(%d)", n)
	}
	d.keep(addr, allocation{bytes: n, from: pinned})
	b := device.Host(unsafe.Slice(pointer(addr), n))
	clear(b.Bytes())
	return b, nil
}

// Mapped allocates pinned host memory as the GPU sees it: kernels and copies work on it
// as on the GPU's own, at the speed of the bus, and the host reaches it by copies alone.
// It does not count in Held. Free releases it.
func (d *Device) Mapped() device.Allocator { return mapped{d} }

type mapped struct{ d *Device }

// Alloc returns n zeroed bytes.
func (m mapped) Alloc(n int) (device.Buffer, error) {
	b, err := m.d.AllocHost(n)
	if err != nil || n == 0 {
		return device.Buffer{}, err
	}
	return device.At(b.Addr(), n), nil
}

// Free releases the whole of what Alloc or AllocHost returned. It may wait until
// the GPU is idle. An address that this handle did not allocate is an error.
func (d *Device) Free(b device.Buffer) error {
	if b.Len() == 0 {
		return nil
	}
	d.mu.Lock()
	a, ok := d.memory[b.Addr()]
	d.mu.Unlock()
	if !ok || a.bytes != b.Len() || (a.from != plain && a.from != pinned) {
		return fmt.Errorf("%s: free of %d bytes at %#x, which Alloc and AllocHost did not return, or which are free already", d, b.Len(), b.Addr())
	}
	return d.release(b)
}

// release gives back any allocation. It leaves the books even where the driver
// refuses, for then it cannot be released at all.
func (d *Device) release(b device.Buffer) error {
	d.mu.Lock()
	a, ok := d.memory[b.Addr()]
	if ok {
		delete(d.memory, b.Addr())
		if a.from == plain || a.from == pooled {
			d.held -= int64(a.bytes)
		}
	}
	d.mu.Unlock()
	if !ok {
		return nil // released by another goroutine
	}
	f, call := d.api.MemFree, "cuMemFree"
	switch a.from {
	case pinned:
		f, call = d.api.MemFreeHost, "cuMemFreeHost"
	case peer:
		f, call = d.api.IpcCloseMemHandle, "cuIpcCloseMemHandle"
	}
	if r := d.call(f, b.Addr()); r != 0 {
		return d.fail(r, "%s(%#x, %d bytes)", call, b.Addr(), a.bytes)
	}
	return nil
}

func (d *Device) keep(addr uintptr, a allocation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory[addr] = a
	if a.from == plain || a.from == pooled {
		d.held += int64(a.bytes)
		d.peak = max(d.peak, d.held)
	}
}

// Register pins host memory that was allocated elsewhere, such as a mapping, so
// that the GPU copies it at full speed: the segments through which a transport of
// host memory will stage what lies on GPUs. Call unregister before the memory goes.
func (d *Device) Register(b []byte) (unregister func() error, err error) {
	const portable = 1
	if len(b) == 0 {
		return func() error { return nil }, nil
	}
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if r := d.call(d.api.MemHostRegister, addr, uintptr(len(b)), portable); r != 0 {
		return nil, d.fail(r, "cuMemHostRegister(%d bytes)", len(b))
	}
	return func() error {
		if r := d.call(d.api.MemHostUnregister, addr); r != 0 {
			return d.fail(r, "cuMemHostUnregister(%d bytes)", len(b))
		}
		return nil
	}, nil
}

// OutOfMemoryError is what allocations fail with that the GPU has no room for.
// All sizes are in bytes.
type OutOfMemoryError struct {
	Device      string
	Want        int64
	Free, Total int64 // of the GPU, when the allocation failed
	Held        int64 // allocated through the same handle of this process
	Err         *Error
}

func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("%v: %s wanted, %s of %s free, %s held by this process",
		e.Err, size(e.Want), size(e.Free), size(e.Total), size(e.Held))
}

func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// outOfMemory adds to err, when it says that memory does not suffice, how much
// there is.
func (d *Device) outOfMemory(err *Error, want int) error {
	if err.Code != driver.OutOfMemory {
		return err
	}
	free, total, infoErr := d.Memory()
	if infoErr != nil {
		return fmt.Errorf("%w; and %w", err, infoErr)
	}
	return &OutOfMemoryError{Device: d.String(), Want: int64(want), Free: free, Total: total, Held: d.Held(), Err: err}
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
