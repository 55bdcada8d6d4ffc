//go:build cu

package cubridge

import (
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"gorgonia.org/cu"
)

// cu keeps each handle as the only field of a struct, and offers no other way in or out.
const word = unsafe.Sizeof(uintptr(0))

var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.CUContext{})-word]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-word]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Event{})-word]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Module{})-word]
)

// handle is what a struct of cu's holds, and wrap the struct that holds h.
func handle[T any](x T) uintptr { return *(*uintptr)(unsafe.Pointer(&x)) }
func wrap[T any](h uintptr) T   { return *(*T)(unsafe.Pointer(&h)) }

// BorrowContext returns a handle on the GPU of a context of cu's, on which both work
// from now on. Close of it releases what gorun made there, and leaves the context; the
// program destroys or releases that afterwards, as it made it.
//
// Collectives between GPUs want the primary context (cu.Device.RetainPrimaryCtx), in
// which NCCL works; memory, streams, modules and copies do with any.
func BorrowContext(c cu.CUContext) (*cuda.Device, error) { return cuda.Borrow(handle(c)) }

// LendContext is d's context. cu may make streams, events, modules and memory in it,
// which the program destroys before d is closed; it must not destroy the context.
func LendContext(d *cuda.Device) cu.CUContext { return wrap[cu.CUContext](d.Context()) }

// BorrowStream makes a stream of cu's, of d's context, one of gorun's; name stands in
// errors. Close of it waits for its work, for a minute at most, and does not destroy
// it: the program does so afterwards.
//
// Work comes in the order of the calls, whichever side makes them. cu.NoStream is
// refused: a stream made with cu.DefaultStream keeps its order with that one.
func BorrowStream(d *cuda.Device, name string, s cu.Stream) (*cuda.Stream, error) {
	return d.BorrowStream(name, handle(s))
}

// LendStream is s for cu to enqueue on until s is closed; cu must not destroy it. An
// error of s (Err) does not keep cu from enqueueing: a program asks for it once a step.
func LendStream(s *cuda.Stream) cu.Stream { return wrap[cu.Stream](s.Handle()) }

// BorrowEvent makes an event that cu has recorded on a stream, which on is, one that
// gorun's streams wait for. It never returns to gorun's pool: the program destroys it,
// or records it anew, when nobody waits for it any more.
func BorrowEvent(on *cuda.Stream, e cu.Event) *cuda.Event { return on.BorrowEvent(handle(e)) }

// LendEvent is e for cu's streams to wait for and cu to ask. cu must not record or
// destroy it. It is this place in the stream while the program holds e
// (runtime.KeepAlive); what was enqueued to wait for it by then stays.
func LendEvent(e *cuda.Event) cu.Event { return wrap[cu.Event](e.Handle()) }

// BorrowModule makes a module that cu has loaded in d's context one whose kernels
// cuda.Launch takes; name stands in errors. Unload of it does nothing: the program
// unloads it with cu.
func BorrowModule(d *cuda.Device, name string, m cu.Module) *cuda.Module {
	return d.BorrowModule(name, handle(m))
}

// LendModule is m for cu to look up kernels in until m is unloaded or its device
// closed; cu must not unload it.
func LendModule(m *cuda.Module) cu.Module { return wrap[cu.Module](m.Handle()) }

// BorrowMemory names n bytes at p, which lie within one allocation of cu's: device or
// managed memory. The program frees it with cu once no stream uses it; gorun's Free
// refuses it.
func BorrowMemory(d *cuda.Device, p cu.DevicePtr, n int64) (device.Buffer, error) {
	return d.BorrowMemory(uintptr(p), int(n))
}

// LendMemory is where b lies, 0 for an empty one. It is gorun's to free, by whoever
// allocated it. b is device memory, or pinned host memory (AllocHost), which has one
// address on all sides; other memory of the host is nothing that a GPU reaches.
func LendMemory(b device.Buffer) cu.DevicePtr { return cu.DevicePtr(b.Addr()) }
