package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
)

// What other libraries of the process have made can be used here without a copy, by
// its handle. It stays theirs: nothing in this package destroys what is borrowed, and
// whoever lends it keeps it alive until the Device that it was lent to is closed.

// Borrow returns a handle on the GPU of context, a CUcontext, and on that context
// itself: what lies in it is shared with whoever made it. Unlike Open's it need not be
// the primary context, but other libraries, NCCL among them, work in that one.
//
// Calls through the handle leave context current on the thread that makes them.
func Borrow(context uintptr) (*Device, error) {
	if context == 0 {
		return nil, errors.New("a context of zero cannot be borrowed: it is none, or destroyed")
	}
	n, err := Count()
	if err != nil {
		return nil, err
	}
	api, err := driver.Load()
	if err != nil {
		return nil, err
	}
	d := newDevice(api, 0)
	d.context = []uintptr{context}
	var id int32
	if r := d.call(api.CtxGetDevice, uintptr(unsafe.Pointer(&id))); r != 0 {
		return nil, fmt.Errorf("context %#x: %w", context, d.fail(r, "cuCtxGetDevice"))
	}
	for d.ordinal = range n {
		if err := d.describe(); err != nil {
			return nil, err
		}
		if d.id == uintptr(id) {
			return d.start()
		}
	}
	return nil, fmt.Errorf("context %#x is of device %d, which is none of the %d GPUs that this process sees", context, id, n)
}

// BorrowStream makes a Stream of handle, a CUstream of d's context. Close of it, or of
// d, waits for its work and leaves it alone otherwise.
//
// The order between what others enqueue on it and what is enqueued here is that of the
// calls. Its errors are those of calls made here: others see their own.
func (d *Device) BorrowStream(name string, handle uintptr) (*Stream, error) {
	if handle == 0 {
		return nil, fmt.Errorf("%s: stream %s is the default stream, which cannot be borrowed: "+
			"make one, which without the flag CU_STREAM_NON_BLOCKING keeps its order with the default stream", d, name)
	}
	var context uintptr
	if r := d.call(d.api.StreamGetCtx, handle, uintptr(unsafe.Pointer(&context))); r != 0 {
		return nil, d.fail(r, "stream %s: cuStreamGetCtx(%#x)", name, handle)
	}
	if context != d.context[0] {
		return nil, fmt.Errorf("%s: stream %s is of context %#x, and this handle on the GPU of %#x: borrow that context", d, name, context, d.context[0])
	}
	s := &Stream{d: d, name: name, handle: handle, borrowed: true}
	s.enter()
	return s, nil
}

// BorrowEvent makes an Event of handle, a CUevent that was recorded on s, for streams
// of this package to wait for. It must not be recorded anew or destroyed while the
// Event is in use. Since works where the event was made with timing.
func (s *Stream) BorrowEvent(handle uintptr) *Event {
	return &Event{stream: s, handle: handle, borrowed: true}
}

// BorrowModule makes a Module of handle, a CUmodule that was loaded in d's context.
// Unload of it does nothing.
func (d *Device) BorrowModule(name string, handle uintptr) *Module {
	return &Module{d: d, name: name, handle: handle}
}

// BorrowMemory names n bytes at addr, which lie within one allocation of d's context:
// device memory, managed memory, or pinned host memory as the GPU sees it. It does not
// count in Held, and Free refuses it.
func (d *Device) BorrowMemory(addr uintptr, n int) (device.Buffer, error) {
	if n == 0 {
		return device.Buffer{}, nil
	}
	var base, size uintptr
	if r := d.call(d.api.MemGetAddressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&size)), addr); r != 0 {
		return device.Buffer{}, d.fail(r, "cuMemGetAddressRange(%#x), of %d bytes to borrow", addr, n)
	}
	if n < 0 || uintptr(n) > base+size-addr {
		return device.Buffer{}, fmt.Errorf("%s: %d bytes at %#x cannot be borrowed: the allocation ends after %d", d, n, addr, base+size-addr)
	}
	return device.At(addr, n), nil
}
