package cuda

import (
	"fmt"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Pool gives memory in the order of streams, without waiting for the GPU. It is for
// work whose sizes are known only as it goes on, such as the keys and values of
// texts that a model writes; what training needs is planned, and comes from Alloc.
type Pool struct {
	d      *Device
	handle uintptr
}

// poolProps is a CUmemPoolProps.
type poolProps struct {
	allocType   int32
	handleTypes int32
	location    struct{ kind, id int32 }
	security    uintptr
	maxSize     uint64
	reserved    [56]byte
}

// Attributes of a pool.
const (
	releaseThreshold = 4
	reservedNow      = 5
	usedNow          = 7
)

// NewPool makes an empty pool. Of the memory that is free in it, it holds on to
// keep bytes when a stream or event is waited for, and gives the rest back to the
// GPU.
func (d *Device) NewPool(keep int64) (*Pool, error) {
	p := &Pool{d: d}
	props := &poolProps{allocType: 1} // pinned: stays on the GPU
	props.location.kind, props.location.id = 1, int32(d.id)
	if r := d.call(d.api.MemPoolCreate, uintptr(unsafe.Pointer(&p.handle)), uintptr(unsafe.Pointer(props))); r != 0 {
		return nil, d.fail(r, "cuMemPoolCreate")
	}
	d.mu.Lock()
	d.pools[p] = struct{}{}
	d.mu.Unlock()
	threshold := uint64(keep)
	if r := d.call(d.api.MemPoolSetAttribute, p.handle, releaseThreshold, uintptr(unsafe.Pointer(&threshold))); r != 0 {
		err := d.fail(r, "cuMemPoolSetAttribute(release threshold %d)", keep)
		p.Close() // the first error says more
		return nil, err
	}
	return p, nil
}

// Alloc returns n bytes that work enqueued on s from now on may use, and work of
// other streams that waits for it. The memory is not zeroed. It fails with an
// *OutOfMemoryError where the memory does not suffice, and with the stream's
// error where s has failed.
func (p *Pool) Alloc(s *Stream, n int) (device.Buffer, error) {
	d := p.d
	if n < 0 {
		return device.Buffer{}, fmt.Errorf("%s: cannot allocate %d bytes", d, n)
	}
	if n == 0 {
		return device.Buffer{}, s.Err()
	}
	if !s.begin() {
		return device.Buffer{}, s.Err()
	}
	defer s.mu.Unlock()
	var addr uintptr
	if r := d.call(d.api.MemAllocFromPoolAsync, uintptr(unsafe.Pointer(&addr)), uintptr(n), p.handle, s.handle); r != 0 {
		return device.Buffer{}, d.outOfMemory(d.fail(r, "cuMemAllocFromPoolAsync(%d)", n), n)
	}
	d.keep(addr, allocation{bytes: n, from: pooled, pool: p})
	return device.At(addr, n), nil
}

// Free gives b back once s has passed this place. Work enqueued later, on any
// stream, must not touch it. Errors fail the stream.
func (p *Pool) Free(s *Stream, b device.Buffer) {
	if b.Len() == 0 {
		return
	}
	d := p.d
	d.mu.Lock()
	a, ok := d.memory[b.Addr()]
	if ok = ok && a.pool == p && a.bytes == b.Len(); ok {
		delete(d.memory, b.Addr())
		d.held -= int64(a.bytes)
	}
	d.mu.Unlock()
	if !ok {
		s.Fail(fmt.Errorf("%s: stream %s: free of %d bytes at %#x, which are not of this pool", d, s.name, b.Len(), b.Addr()))
		return
	}
	// On a failed stream too: the memory is not used any more.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if r := d.call(d.api.MemFreeAsync, b.Addr(), s.handle); r != 0 {
		s.Fail(d.fail(r, "stream %s: cuMemFreeAsync(%d bytes)", s.name, b.Len()))
	}
}

// Size returns how many bytes the pool holds of the GPU's memory, and how many
// of them are allocated.
func (p *Pool) Size() (reserved, used int64, err error) {
	for _, a := range []struct {
		to   *int64
		attr uintptr
	}{{&reserved, reservedNow}, {&used, usedNow}} {
		var v uint64
		if r := p.d.call(p.d.api.MemPoolGetAttribute, p.handle, a.attr, uintptr(unsafe.Pointer(&v))); r != 0 {
			return 0, 0, p.d.fail(r, "cuMemPoolGetAttribute(%d)", a.attr)
		}
		*a.to = int64(v)
	}
	return reserved, used, nil
}

// Trim gives free memory back to the GPU until the pool holds at most keep bytes, or as
// few as the driver can tell to be free: it may not count what a stream has freed, whose
// end was seen by an event alone.
func (p *Pool) Trim(keep int64) error {
	if r := p.d.call(p.d.api.MemPoolTrimTo, p.handle, uintptr(keep)); r != 0 {
		return p.d.fail(r, "cuMemPoolTrimTo(%d)", keep)
	}
	return nil
}

// Close destroys the pool. What is still allocated from it lives until it is
// freed.
func (p *Pool) Close() error {
	p.d.mu.Lock()
	_, open := p.d.pools[p]
	delete(p.d.pools, p)
	p.d.mu.Unlock()
	if !open {
		return nil
	}
	if r := p.d.call(p.d.api.MemPoolDestroy, p.handle); r != driver.Success {
		return p.d.fail(r, "cuMemPoolDestroy")
	}
	return nil
}
