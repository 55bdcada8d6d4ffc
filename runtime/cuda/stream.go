package cuda

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
)

// Stream is a CUstream that does not synchronise with the default stream, unless
// it is a borrowed one that does. It implements device.Stream.
//
// The first error is sticky: one that the driver returns for a call on the
// stream, or one that Fail is given. Calls after it enqueue nothing. What was
// enqueued before it still runs.
type Stream struct {
	d        *Device
	name     string
	handle   uintptr
	borrowed bool // Close does not destroy it

	failed atomic.Pointer[error]
	links  links
	lent   atomic.Bool // others have the handle, and may enqueue unseen

	mu     sync.Mutex // orders calls; guards what follows
	closed bool
	calls  uint64      // that enqueue, so far
	args   [12]uintptr // of the call being made: a list on the heap that no call allocates
	block  paramBlock  // of the launch being made
	host   []byte      // memory of the latest copy
}

var _ device.Stream = (*Stream)(nil)

// NewStream starts an empty stream of default priority.
func (d *Device) NewStream(name string) (device.Stream, error) {
	s, err := d.newStream(name, 0)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewPriorityStream starts a stream whose kernels' blocks are scheduled before
// those of other streams (high), or after those of streams with high priority.
func (d *Device) NewPriorityStream(name string, high bool) (*Stream, error) {
	var least, greatest int32
	if r := d.call(d.api.CtxGetStreamPriorityRange, uintptr(unsafe.Pointer(&least)), uintptr(unsafe.Pointer(&greatest))); r != 0 {
		return nil, d.fail(r, "cuCtxGetStreamPriorityRange")
	}
	if high {
		return d.newStream(name, greatest)
	}
	return d.newStream(name, least)
}

func (d *Device) newStream(name string, priority int32) (*Stream, error) {
	const nonBlocking = 1
	s := &Stream{d: d, name: name}
	if r := d.call(d.api.StreamCreateWithPriority, uintptr(unsafe.Pointer(&s.handle)), nonBlocking, uintptr(priority)); r != 0 {
		return nil, d.fail(r, "stream %s: cuStreamCreateWithPriority", name)
	}
	s.enter()
	return s, nil
}

// enter readies s, whose handle is set, and writes it into the device's books.
func (s *Stream) enter() {
	s.links.init()
	s.block.init()
	s.d.mu.Lock()
	s.d.streams[s] = struct{}{}
	s.d.mu.Unlock()
}

func (s *Stream) Device() device.Device { return s.d }

// Name is what the stream was called when it was made.
func (s *Stream) Name() string { return s.name }

// Handle is the CUstream, for other libraries.
func (s *Stream) Handle() uintptr {
	s.lent.Store(true)
	return s.handle
}

// Err is the stream's error, nil while there is none.
func (s *Stream) Err() error {
	if e := s.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// begin locks the stream for a call that enqueues work. It reports false, with
// the stream unlocked, where the stream has failed or is closed.
func (s *Stream) begin() bool {
	if s.failed.Load() != nil {
		return false
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.Fail(fmt.Errorf("%s: stream %s: %w", s.d, s.name, device.ErrClosed))
		return false
	}
	s.calls++
	return true
}

// run calls p with the first n of s.args, which the caller has set under s.mu.
func (s *Stream) run(p dl.Proc, n int) driver.Result { return s.d.call(p, s.args[:n]...) }

// Copy copies src to dst, of one size: between device memory, of this GPU or of
// one that it may access, and host memory, or within either. A copy from or to
// pinned host memory (AllocHost, Register) runs while the host goes on; with other
// host memory the call may wait for the copy, and from host memory to host memory it
// does, and for all work of the stream before.
func (s *Stream) Copy(dst, src device.Buffer) {
	if !s.begin() {
		return
	}
	defer s.mu.Unlock()
	if dst.Len() != src.Len() {
		s.Fail(fmt.Errorf("%s: stream %s: copy of %d bytes into a buffer of %d", s.d, s.name, src.Len(), dst.Len()))
		return
	}
	if src.Len() == 0 {
		return
	}
	// Memory that the stream refers to cannot lie on a goroutine's stack.
	for _, b := range []device.Buffer{dst, src} {
		if b.OnHost() {
			s.host = b.Bytes()
		}
	}
	s.args = [12]uintptr{dst.Addr(), src.Addr(), uintptr(src.Len()), s.handle}
	if r := s.run(s.d.api.MemcpyAsync, 4); r != 0 {
		s.Fail(s.d.fail(r, "stream %s: cuMemcpyAsync(%d bytes from %s to %s)", s.name, src.Len(), where(src), where(dst)))
	}
}

func where(b device.Buffer) string {
	if b.OnHost() {
		return "the host"
	}
	return fmt.Sprintf("%#x", b.Addr())
}

// Clear sets all bytes of b, device memory, to zero.
func (s *Stream) Clear(b device.Buffer) {
	if b.Len() == 0 || !s.begin() {
		return
	}
	defer s.mu.Unlock()
	s.args = [12]uintptr{b.Addr(), 0, uintptr(b.Len()), s.handle}
	if r := s.run(s.d.api.MemsetD8Async, 4); r != 0 {
		s.Fail(s.d.fail(r, "stream %s: cuMemsetD8Async(%d bytes at %#x)", s.name, b.Len(), b.Addr()))
	}
}

// Fill32 writes v into each four bytes of b, device memory of a multiple of four
// bytes at a multiple of four.
func (s *Stream) Fill32(b device.Buffer, v uint32) {
	if b.Len() == 0 || !s.begin() {
		return
	}
	defer s.mu.Unlock()
	if b.Len()%4 != 0 || b.Addr()%4 != 0 {
		s.Fail(fmt.Errorf("%s: stream %s: fill of %d bytes at %#x with words of 4", s.d, s.name, b.Len(), b.Addr()))
		return
	}
	s.args = [12]uintptr{b.Addr(), uintptr(v), uintptr(b.Len() / 4), s.handle}
	if r := s.run(s.d.api.MemsetD32Async, 4); r != 0 {
		s.Fail(s.d.fail(r, "stream %s: cuMemsetD32Async(%d words at %#x)", s.name, b.Len()/4, b.Addr()))
	}
}

// WaitValue32 makes later work wait until the word at addr, in device memory or
// in host memory that is pinned, has reached v: until int32(word-v) is not
// negative, so that counters may wrap.
func (s *Stream) WaitValue32(addr uintptr, v uint32) {
	const orGreater = 0
	s.word(s.d.api.StreamWaitValue32, "cuStreamWaitValue32", addr, v, orGreater)
}

// WriteValue32 writes v to the word at addr once all earlier work of the stream
// is done and its writes are visible.
func (s *Stream) WriteValue32(addr uintptr, v uint32) {
	s.word(s.d.api.StreamWriteValue32, "cuStreamWriteValue32", addr, v, 0)
}

func (s *Stream) word(p dl.Proc, call string, addr uintptr, v uint32, flags uintptr) {
	if !s.begin() {
		return
	}
	defer s.mu.Unlock()
	s.args = [12]uintptr{s.handle, addr, uintptr(v), flags}
	if r := s.run(p, 4); r != 0 {
		s.Fail(s.d.fail(r, "stream %s: %s(%#x, %d)", s.name, call, addr, v))
	}
}

// Query reports whether the work enqueued before is done, and does not wait: while somebody
// else enqueues, and on a closed stream, it asks nothing and says no. The error is the
// stream's, of which it asks the driver.
func (s *Stream) Query() (bool, error) {
	if err := s.Err(); err != nil {
		return false, err
	}
	if !s.mu.TryLock() { // who has it may wait for room on the stream
		return false, s.Err()
	}
	if s.closed { // the driver may know it no more
		s.mu.Unlock()
		return false, s.Err()
	}
	r := s.d.call(s.d.api.StreamQuery, s.handle)
	s.mu.Unlock()
	switch r {
	case driver.Success, driver.NotReady:
		return r == driver.Success, s.Err()
	default:
		s.Fail(s.d.fail(r, "stream %s: cuStreamQuery", s.name))
	}
	return false, s.Err()
}

// Synchronize waits for the work enqueued before.
func (s *Stream) Synchronize(ctx context.Context) error {
	e := s.Record().(*Event)
	defer e.Release()
	return e.Sync(ctx)
}

// closeTimeout bounds how long Close waits for the stream's work.
const closeTimeout = time.Minute

// Close waits for the enqueued work, for a minute at most and not at all on a
// failed stream, releases the stream, unless it is borrowed, and returns its error.
func (s *Stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return s.Err()
	}
	s.closed = true
	s.mu.Unlock()

	var late error
	if s.Err() == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout,
			fmt.Errorf("%s: stream %s closed with work that is not done after %v", s.d, s.name, closeTimeout))
		defer cancel()
		e := s.record()
		late = e.Sync(ctx)
		e.Release()
	}
	s.links.leave(s)
	s.d.mu.Lock()
	delete(s.d.streams, s)
	s.d.mu.Unlock()
	if !s.borrowed {
		if r := s.d.call(s.d.api.StreamDestroy, s.handle); r != 0 && s.Err() == nil {
			s.Fail(s.d.fail(r, "stream %s: cuStreamDestroy", s.name))
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	return late
}
