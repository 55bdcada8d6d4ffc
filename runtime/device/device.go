// Package device holds the contract between work and where it runs: devices,
// buffers, streams and events, and their CPU implementation.
//
// A Stream is a FIFO of work on one device. The host enqueues and goes on; an
// Event marks a place in a stream, and another stream may wait for it without
// the host. On the CPU a stream is a goroutine with a queue, so overlap,
// ordering and forgotten waits are as real on a laptop as on a GPU, and code
// above this package is written once.
package device

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// Kind says what hardware a device is.
type Kind uint8

const (
	CPU  Kind = iota // memory and processor of the host
	CUDA             // an NVIDIA GPU
)

// String is "cpu" or "cuda".
func (k Kind) String() string {
	if k == CUDA {
		return "cuda"
	}
	return "cpu"
}

// Allocator gives memory.
type Allocator interface {
	// Alloc returns n zeroed bytes, aligned to 64 or more, that live until Free of the
	// Device that they belong to.
	Alloc(n int) (Buffer, error)
}

// Device is where buffers live and streams run.
type Device interface {
	Kind() Kind
	// String is "cpu" or "cuda:0".
	String() string
	Allocator
	// AllocHost returns n zeroed bytes of host memory that the device copies
	// from and to without staging: pinned, where that matters.
	AllocHost(n int) (Buffer, error)
	// Free releases what Alloc or AllocHost returned, the whole of it and once. The
	// caller makes sure that no stream uses it any more.
	Free(Buffer) error
	// NewStream starts an empty stream; name stands in traces and errors.
	NewStream(name string) (Stream, error)
}

// Stream is a FIFO of work. All methods may be called from any goroutine; the
// order of calls is the order of work.
//
// The first error of work on a stream is sticky: later work on it is skipped,
// every wait returns the error, and a stream that waits for an event of a
// failed stream fails with the same error. So nothing computes on data that a
// failed collective left behind.
type Stream interface {
	// Device is where the stream's work runs.
	Device() Device
	// Record returns an event that is reached when all work enqueued before is done.
	Record() Event
	// Wait makes work enqueued later start only after e is reached. It does not block the
	// host. e is of a stream of the same kind of device, else the stream fails.
	Wait(e Event)
	// Copy copies src to dst, of one size in bytes: from host memory to the device's,
	// the other way, or within either. They do not overlap. Host memory must live, and
	// what is read of it stay unchanged, until the stream has passed the copy. Where the
	// sizes differ the stream fails.
	Copy(dst, src Buffer)
	// Synchronize blocks the host until all work enqueued before is done, the
	// stream has failed, or ctx ends.
	Synchronize(ctx context.Context) error
	// Close lets enqueued work end, waits for that, and releases the stream. Work that
	// is enqueued afterwards fails with ErrClosed. It returns the stream's error; a second
	// Close does nothing else.
	Close() error
}

// Event is a place in a stream. Its methods may be called from any goroutine.
type Event interface {
	// Sync blocks the host until the event is reached, its stream failed, or ctx ends.
	Sync(ctx context.Context) error
	// Since returns the time between two reached events of one device; an
	// event that is not reached gives an error.
	Since(earlier Event) (time.Duration, error)
}

// Release gives events of a GPU back to its pool, where the garbage collector would
// put them only when the host's memory fills up. They must not be used afterwards.
// What streams wait for by then stays. Events of other devices, and nil, need none.
func Release(events ...Event) {
	for _, e := range events {
		if r, ok := e.(interface{ Release() }); ok {
			r.Release()
		}
	}
}

// ErrClosed is what work enqueued on a closed stream fails with.
var ErrClosed = errors.New("stream is closed")

// Buffer is a range of memory on one device. It is a value: copies and slices share
// the memory. The zero Buffer is empty. A Buffer of Go memory keeps that alive; other
// memory lives as long as who has allocated it says.
type Buffer struct {
	host []byte  // the memory, on the CPU
	addr uintptr // the device address, elsewhere
	n    int
}

// Host wraps memory of the CPU: a Go slice or a mapping.
func Host(b []byte) Buffer { return Buffer{host: b, n: len(b)} }

// At names n bytes of device memory at addr, which must not be 0. It takes over
// nothing: the owner frees the memory, when no stream uses it any more.
func At(addr uintptr, n int) Buffer { return Buffer{addr: addr, n: n} }

// Len is the size in bytes.
func (b Buffer) Len() int { return b.n }

// Addr is the address of the first byte, on whichever device; 0 when empty.
func (b Buffer) Addr() uintptr {
	if b.host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.host)))
	}
	return b.addr
}

// OnHost reports whether Bytes may be called.
func (b Buffer) OnHost() bool { return b.addr == 0 }

// Slice returns bytes [from, to) of b; it panics when they are out of range.
func (b Buffer) Slice(from, to int) Buffer {
	if from < 0 || to < from || to > b.n {
		panic(fmt.Sprintf("device: slice [%d:%d) of a buffer of %d bytes", from, to, b.n))
	}
	if b.host != nil {
		return Buffer{host: b.host[from:to:to], n: to - from}
	}
	if b.addr == 0 {
		return Buffer{}
	}
	return Buffer{addr: b.addr + uintptr(from), n: to - from}
}

// Bytes is the memory itself. It panics for device memory, which the host cannot touch.
func (b Buffer) Bytes() []byte {
	if b.addr != 0 {
		panic("device: Bytes of device memory")
	}
	return b.host
}

// View sees a host buffer as elements of type T, sharing its memory. It panics for
// device memory, for a buffer that is not aligned for T, and for one whose size is no
// multiple of T's.
func View[T any](b Buffer) []T {
	bytes := b.Bytes()
	var zero T
	size := int(unsafe.Sizeof(zero))
	p := unsafe.Pointer(unsafe.SliceData(bytes))
	if len(bytes)%size != 0 || uintptr(p)%unsafe.Alignof(zero) != 0 {
		panic(fmt.Sprintf("device: %d bytes at %p do not hold elements of %d bytes", len(bytes), p, size))
	}
	return unsafe.Slice((*T)(p), len(bytes)/size)
}

// Of sees a Go slice as a buffer, sharing its memory. T is a number, or an array or
// struct of numbers: the buffer's users copy bytes, which pointers do not survive. A
// slice that is reallocated, by append, leaves the buffer with the old memory.
func Of[T any](s []T) Buffer {
	var zero T
	return Host(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero))))
}
