package device

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// queueDepth bounds how far the host runs ahead of a CPU stream, as a driver
// does: the host blocks when so many pieces of work are waiting.
const queueDepth = 4096

// cpu is the CPU as a device. All its streams share the machine's cores.
type cpu struct{}

// NewCPU returns the CPU as a device.
func NewCPU() Device { return cpu{} }

func (cpu) Kind() Kind     { return CPU }
func (cpu) String() string { return "cpu" }

// Alloc returns memory of the Go heap, aligned to 64 bytes.
func (cpu) Alloc(n int) (Buffer, error) {
	const align = 64
	if n < 0 || n > math.MaxInt-align {
		return Buffer{}, fmt.Errorf("cpu: cannot allocate %d bytes", n)
	}
	if n == 0 {
		return Buffer{}, nil
	}
	raw := make([]byte, n+align)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (align - 1))
	return Host(raw[off : off+n : off+n]), nil
}

// AllocHost is Alloc: the device's memory is the host's.
func (c cpu) AllocHost(n int) (Buffer, error) { return c.Alloc(n) }

// Free leaves the memory to the garbage collector.
func (cpu) Free(Buffer) error { return nil }

func (c cpu) NewStream(name string) (Stream, error) { return NewCPUStream(name, nil), nil }

// Tracer is told of each piece of work that ran on a CPU stream.
type Tracer interface {
	// Span is called on the stream's goroutine, behind the work.
	Span(stream, work string, start, end time.Time)
}

// CPUStream runs closures in order on a goroutine of its own.
type CPUStream struct {
	name   string
	tracer Tracer
	queue  chan work
	failed atomic.Pointer[error]
	once   sync.Once

	mu     sync.RWMutex // held shared while sending, so that Close may close the queue
	closed bool
	done   chan struct{} // closed by run
}

type work struct {
	name  string
	do    func() error
	event *cpuEvent // reached here, instead of do
}

// NewCPUStream starts a stream; tracer may be nil. Close ends its goroutine. The host
// runs at most some thousand pieces of work ahead of the stream, and then waits.
func NewCPUStream(name string, tracer Tracer) *CPUStream {
	s := &CPUStream{name: name, tracer: tracer, queue: make(chan work, queueDepth), done: make(chan struct{})}
	go s.run()
	return s
}

// Do enqueues f, which runs on the stream's goroutine behind the work enqueued before.
// An error that it returns fails the stream; name stands before it, and in traces. f
// must not wait for later work of the same stream.
func (s *CPUStream) Do(name string, f func() error) { s.enqueue(work{name: name, do: f}) }

// Name is what the stream was called when it was made.
func (s *CPUStream) Name() string { return s.name }

// Device is the CPU.
func (s *CPUStream) Device() Device { return cpu{} }

// Record is Stream's.
func (s *CPUStream) Record() Event {
	e := &cpuEvent{stream: s, reached: make(chan struct{})}
	s.enqueue(work{event: e})
	return e
}

// Wait is Stream's, for events of streams of the CPU.
func (s *CPUStream) Wait(e Event) {
	c, ok := e.(*cpuEvent)
	if !ok {
		s.fail(fmt.Errorf("stream %s: cannot wait for an event of another kind of device (%T)", s.name, e))
		return
	}
	if c.stream == s {
		return
	}
	c.awaited.Store(true)
	s.Do("wait "+c.stream.name, func() error {
		<-c.reached
		return c.err
	})
}

// Copy is Stream's, within host memory.
func (s *CPUStream) Copy(dst, src Buffer) {
	s.Do("copy", func() error {
		if dst.n != src.n {
			return fmt.Errorf("%d bytes into a buffer of %d", src.n, dst.n)
		}
		copy(dst.Bytes(), src.Bytes())
		return nil
	})
}

// Synchronize is Stream's.
func (s *CPUStream) Synchronize(ctx context.Context) error { return s.Record().Sync(ctx) }

// Close waits for the enqueued work and returns the stream's error.
func (s *CPUStream) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		close(s.queue)
	})
	<-s.done
	return s.Err()
}

// Err is the first error of work on the stream, nil while there is none.
func (s *CPUStream) Err() error {
	if e := s.failed.Load(); e != nil {
		return *e
	}
	return nil
}

func (s *CPUStream) fail(err error) { s.failed.CompareAndSwap(nil, &err) }

func (s *CPUStream) enqueue(w work) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		s.fail(fmt.Errorf("stream %s: %w", s.name, ErrClosed))
		if w.event != nil {
			w.event.reach(s.Err())
		}
		return
	}
	s.queue <- w
}

// run executes the queue. NewCPUStream starts it, Close ends it.
func (s *CPUStream) run() {
	defer close(s.done)
	for w := range s.queue {
		if w.event != nil {
			w.event.reach(s.Err())
			continue
		}
		if s.failed.Load() != nil {
			continue
		}
		start := time.Now()
		if err := w.do(); err != nil {
			s.fail(fmt.Errorf("%s: %w", w.name, err))
		}
		if s.tracer != nil {
			s.tracer.Span(s.name, w.name, start, time.Now())
		}
	}
}

type cpuEvent struct {
	stream  *CPUStream
	awaited atomic.Bool   // another stream waits
	reached chan struct{} // closed by reach; at and err are set before
	at      time.Time
	err     error
}

func (e *cpuEvent) reach(err error) {
	e.at, e.err = time.Now(), err
	close(e.reached)
	if e.awaited.Load() {
		// The goroutine that waits has become this thread's next. Would this one
		// just go on computing, another thread took it over tens of microseconds
		// later, or none at all where all are computing. So it runs now, and this
		// one goes on where a thread is free.
		runtime.Gosched()
	}
}

func (e *cpuEvent) Sync(ctx context.Context) error {
	select {
	case <-e.reached:
		return e.err
	default:
	}
	select {
	case <-e.reached:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for stream %s: %w", e.stream.name, context.Cause(ctx))
	}
}

func (e *cpuEvent) Since(earlier Event) (time.Duration, error) {
	b, ok := earlier.(*cpuEvent)
	if !ok {
		return 0, errors.New("events of different kinds of device")
	}
	for _, x := range []*cpuEvent{e, b} {
		select {
		case <-x.reached:
		default:
			return 0, fmt.Errorf("event on stream %s is not reached", x.stream.name)
		}
	}
	return e.at.Sub(b.at), nil
}
