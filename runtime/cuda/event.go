package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Event is a place in a stream. It implements device.Event.
//
// Its CUevent comes from the device's pool and returns there when the garbage
// collector finds that nobody holds the Event, or earlier by Release. A borrowed
// one stays its maker's.
type Event struct {
	stream   *Stream
	handle   uintptr
	borrowed bool
	err      error // of the stream, where it had failed before
	reached  atomic.Bool
	released atomic.Bool
	held     atomic.Int32 // how often Hold was called, less the calls of Release
	call     uint64       // the stream's calls by then
	cleanup  runtime.Cleanup
}

var _ device.Event = (*Event)(nil)

// Record returns an event that is reached when all work enqueued before is done.
func (s *Stream) Record() device.Event {
	if !s.begin() {
		return &Event{stream: s, err: s.Err()}
	}
	s.mu.Unlock()
	return s.record()
}

func (s *Stream) record() *Event {
	d := s.d
	e := &Event{stream: s}
	handle, err := d.events.get(s)
	if err != nil {
		s.Fail(err)
		e.err = s.Err()
		return e
	}
	e.handle = handle
	e.cleanup = runtime.AddCleanup(e, d.events.put, handle)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.args = [12]uintptr{handle, s.handle}
	if r := s.run(d.api.EventRecord, 2); r != 0 {
		s.Fail(d.fail(r, "stream %s: cuEventRecord", s.name))
		e.err = s.Err()
	}
	e.call = s.calls
	return e
}

// Latest reports whether nothing has been enqueued since e was recorded on s, so that a
// new event would be in the same place. It is false where that cannot be known: others
// have the stream's Handle, or lent it.
func (s *Stream) Latest(e *Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.stream == s && e.err == nil && e.call == s.calls && !s.borrowed && !s.lent.Load()
}

// Handle is the CUevent, for other libraries; 0 where the stream had failed. It is
// this place in the stream as long as the Event is held (runtime.KeepAlive) and not
// released. Waits that were enqueued by then stay.
func (e *Event) Handle() uintptr { return e.handle }

// Hold makes one more Release necessary, and returns e: for an event that several use.
func (e *Event) Hold() *Event {
	e.held.Add(1)
	return e
}

// Release returns the event to the pool at once. The event must not be used
// afterwards, except that one which was seen reached stays reached. Waits that
// streams have enqueued are not affected. A borrowed event goes nowhere. After Hold it
// takes one more.
func (e *Event) Release() {
	if e.held.Add(-1) >= 0 || e.handle == 0 || e.released.Swap(true) || e.borrowed {
		return
	}
	e.cleanup.Stop()
	e.stream.d.events.put(e.handle)
}

// Wait makes work enqueued later start only after e is reached. It does not block
// the host. An error of e's stream becomes one of s.
func (s *Stream) Wait(ev device.Event) {
	e, ok := ev.(*Event)
	switch {
	case !ok:
		s.Fail(fmt.Errorf("%s: stream %s: cannot wait for an event of another kind of device (%T)", s.d, s.name, ev))
		return
	case e.err != nil:
		s.Fail(e.err)
		return
	case e.stream == s || e.reached.Load():
		return
	case e.released.Load():
		s.Fail(fmt.Errorf("%s: stream %s: waits for an event of stream %s that was released", s.d, s.name, e.stream.name))
		return
	}
	if !s.begin() {
		return
	}
	s.args = [12]uintptr{s.handle, e.handle, 0}
	r := s.run(s.d.api.StreamWaitEvent, 3)
	s.mu.Unlock()
	if r != 0 {
		s.Fail(s.d.fail(r, "stream %s: cuStreamWaitEvent(of stream %s)", s.name, e.stream.name))
		return
	}
	s.follow(e)
	runtime.KeepAlive(e) // its handle must not be recorded anew before the call above
}

// Sync blocks the host until the event is reached, its stream has failed, or ctx
// ends. It asks the driver again and again, at first without a pause; an error
// that the driver answers with fails the stream.
func (e *Event) Sync(ctx context.Context) error {
	var p pause
	for {
		done, err := e.Reached()
		if done || err != nil {
			return err
		}
		if !p.wait(ctx) {
			return fmt.Errorf("%s: waiting for stream %s: %w", e.stream.d, e.stream.name, context.Cause(ctx))
		}
	}
}

// Reached asks whether the event is reached, and does not wait. The error is that of
// its stream, as Sync would return it.
func (e *Event) Reached() (bool, error) {
	s := e.stream
	switch {
	case e.err != nil:
		return false, e.err
	case e.reached.Load():
		return true, nil
	case e.released.Load():
		return false, fmt.Errorf("%s: event of stream %s was released", s.d, s.name)
	}
	failed := func() error {
		if err := s.Err(); err != nil && !errors.Is(err, device.ErrClosed) {
			return err
		}
		return nil
	}
	if err := failed(); err != nil {
		return false, err
	}
	r := s.d.call(s.d.api.EventQuery, e.handle)
	runtime.KeepAlive(e)
	// A stream fails before what it waits for is aborted: a place that was reached by that
	// is none.
	if err := failed(); err != nil {
		return false, err
	}
	switch r {
	case driver.Success:
		e.reached.Store(true)
		return true, nil
	case driver.NotReady:
		return false, nil
	}
	s.Fail(s.d.fail(r, "stream %s: cuEventQuery", s.name))
	return false, s.Err()
}

// ReachedWith notes that e is reached if a later event of its stream has been seen reached:
// Reached need not ask the driver, then.
func (e *Event) ReachedWith(later *Event) {
	if e.stream == later.stream && e.call < later.call && later.reached.Load() {
		e.reached.Store(true)
	}
}

// Since returns the GPU's time between two reached events, to about half a
// microsecond.
func (e *Event) Since(earlier device.Event) (time.Duration, error) {
	b, ok := earlier.(*Event)
	if !ok {
		return 0, errors.New("events of different kinds of device")
	}
	for _, x := range []*Event{e, b} {
		if x.handle == 0 || x.released.Load() {
			return 0, fmt.Errorf("%s: event of stream %s was not recorded, or is released", x.stream.d, x.stream.name)
		}
		done, err := x.Reached()
		if err != nil {
			return 0, err
		}
		if !done {
			return 0, fmt.Errorf("%s: event on stream %s is not reached", x.stream.d, x.stream.name)
		}
	}
	var ms float32
	r := e.stream.d.call(e.stream.d.api.EventElapsedTime, uintptr(unsafe.Pointer(&ms)), b.handle, e.handle)
	runtime.KeepAlive(b)
	runtime.KeepAlive(e)
	if r != 0 {
		return 0, e.stream.d.fail(r, "cuEventElapsedTime(from stream %s to stream %s)", b.stream.name, e.stream.name)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// eventPool holds CUevents that can be recorded.
type eventPool struct {
	d *Device

	mu     sync.Mutex
	free   []uintptr
	all    []uintptr // free or not
	closed bool
}

// get returns an event to record on s.
func (p *eventPool) get(s *Stream) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, fmt.Errorf("%s: stream %s: the device is closed", p.d, s.name)
	}
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		return h, nil
	}
	const timed = 0
	var h uintptr
	if r := p.d.call(p.d.api.EventCreate, uintptr(unsafe.Pointer(&h)), timed); r != 0 {
		return 0, p.d.fail(r, "stream %s: cuEventCreate(beside %d)", s.name, len(p.all))
	}
	p.all = append(p.all, h)
	return h, nil
}

// put also runs as the cleanup of Events that were collected.
func (p *eventPool) put(h uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.free = append(p.free, h)
	}
}

// close destroys all events, also those that somebody still holds.
func (p *eventPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var first error
	for _, h := range p.all {
		if r := p.d.call(p.d.api.EventDestroy, h); r != 0 && first == nil {
			first = p.d.fail(r, "cuEventDestroy")
		}
	}
	p.all, p.free = nil, nil
	return first
}
