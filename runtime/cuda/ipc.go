package cuda

import (
	"fmt"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/device"
)

// SharedMemory names device memory to other processes of the host. It has no
// pointers and may be sent as it is.
type SharedMemory struct {
	Handle      [64]byte // of the whole allocation
	Offset, Len int64    // of the memory in it, in bytes
}

// ShareMemory names b, memory that Alloc returned or a slice of it, to other
// processes. It must not be freed while one of them has it open.
func (d *Device) ShareMemory(b device.Buffer) (SharedMemory, error) {
	var base, size uintptr
	if r := d.call(d.api.MemGetAddressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&size)), b.Addr()); r != 0 {
		return SharedMemory{}, d.fail(r, "cuMemGetAddressRange(%#x)", b.Addr())
	}
	m := &SharedMemory{Offset: int64(b.Addr() - base), Len: int64(b.Len())}
	if r := d.call(d.api.IpcGetMemHandle, uintptr(unsafe.Pointer(&m.Handle)), base); r != 0 {
		return SharedMemory{}, d.fail(r, "cuIpcGetMemHandle(%#x)", base)
	}
	return *m, nil
}

// OpenMemory maps memory that another process shares, of this GPU or of one that
// it can access. A process opens an allocation once at a time, and cannot open
// its own.
func (d *Device) OpenMemory(m SharedMemory) (device.Buffer, error) {
	const enablePeerAccess = 1
	var base uintptr
	if r := d.callStruct(d.api.IpcOpenMemHandle, 1, m.Handle[:], uintptr(unsafe.Pointer(&base)), enablePeerAccess); r != 0 {
		return device.Buffer{}, d.fail(r, "cuIpcOpenMemHandle(%d bytes)", m.Len)
	}
	d.keep(base, allocation{bytes: int(m.Offset + m.Len), from: peer})
	return device.At(base+uintptr(m.Offset), int(m.Len)), nil
}

// CloseMemory unmaps what OpenMemory returned for m.
func (d *Device) CloseMemory(m SharedMemory, b device.Buffer) error {
	base := b.Addr() - uintptr(m.Offset)
	d.mu.Lock()
	a, ok := d.memory[base]
	d.mu.Unlock()
	if !ok || a.from != peer {
		return fmt.Errorf("%s: %d bytes at %#x are not open memory of another process", d, b.Len(), b.Addr())
	}
	return d.release(device.At(base, a.bytes))
}

// HandleForAddressRange returns a file descriptor of a dma-buf over b, device
// memory at whole pages of the host, for a network adapter to register, as the
// RDMA transport will. The caller closes it. It needs the attribute DMABuf.
func (d *Device) HandleForAddressRange(b device.Buffer) (fd int, err error) {
	const dmaBuf = 1
	var f int32 = -1
	if r := d.call(d.api.MemGetHandleForAddressRange, uintptr(unsafe.Pointer(&f)), b.Addr(), uintptr(b.Len()), dmaBuf, 0); r != 0 {
		return -1, d.fail(r, "cuMemGetHandleForAddressRange(%d bytes at %#x)", b.Len(), b.Addr())
	}
	return int(f), nil
}
