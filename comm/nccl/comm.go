package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Options describe a rank of a new communicator.
type Options struct {
	Rank, Size int
	ID         ID     // the same on all ranks
	Name       string // in NCCL's own log and tools, from release 2.27 on
	MaxCTAs    int    // the most thread blocks that a collective takes from the GPU; 0: as NCCL likes. From 2.17 on
	// Patience bounds each call: how long NCCL may take to put it on its stream. The
	// first ones connect to peers that have to make the same call.
	Patience time.Duration
}

// Comm is a rank of a communicator. Its methods may be called from any goroutine and
// take turns; the order of calls has to be the same on all ranks.
type Comm struct {
	lib      *Library
	dev      Device
	o        Options
	name     *byte // C text, which NCCL refers to as long as the communicator lives
	logStart int64

	ending chan struct{} // closed by Abort and Close: calls inside NCCL return
	once   sync.Once
	ended  chan struct{} // closed when NCCL has let go of the communicator
	endErr error         // set before ended is closed

	mu     sync.Mutex // held by who is inside NCCL with this communicator
	handle uintptr    // NCCL writes it, also later than during the call that makes it
	state  int32      // NCCL writes it
	broken error      // a call failed: no more calls
}

// ErrAborted is what calls on a communicator fail with that was aborted or closed.
var ErrAborted = errors.New("the communicator was aborted")

// ErrSlow is what a call fails with that NCCL did not get done within Patience.
var ErrSlow = errors.New("NCCL did not get it done in time")

// NewComm joins this rank to a communicator. It returns when all ranks have joined,
// when one fails, or when ctx ends.
func (l *Library) NewComm(ctx context.Context, d Device, o Options) (*Comm, error) {
	c := &Comm{lib: l, dev: d, o: o, name: dl.CString(o.Name), logStart: l.talk.end(),
		ending: make(chan struct{}), ended: make(chan struct{})}
	err := c.make()
	if err == nil {
		err = c.joined(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Abort(abortPatience))
	}
	return c, nil
}

// abortPatience is how long a communicator that could not be made may take to end.
const abortPatience = 10 * time.Second

// make starts to make the communicator.
func (c *Comm) make() error {
	l, o := c.lib, c.o
	cfg := newConfig(l.Version)
	if o.MaxCTAs != 0 {
		if !l.Version.AtLeast(2, 17) {
			return fmt.Errorf("NCCL %s cannot be told how many thread blocks it may take: that needs 2.17", l.Version)
		}
		cfg.maxCTAs = int32(o.MaxCTAs)
	}
	if l.Version.AtLeast(2, 27) {
		cfg.commName = uintptr(unsafe.Pointer(c.name)) // on the heap, and kept alive by c
	}
	defer c.dev.Bind()()
	c.mu.Lock()
	defer c.mu.Unlock()
	var r int32
	call := "ncclCommInitRankScalable"
	if l.initScalable != 0 {
		id := o.ID
		r = int32(l.initScalable.Call(uintptr(unsafe.Pointer(&c.handle)), uintptr(o.Size), uintptr(o.Rank),
			1, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(cfg))))
	} else {
		// The id is passed by value.
		call = "ncclCommInitRankConfig"
		r = int32(l.initConfig.CallStruct(2, o.ID[:], uintptr(unsafe.Pointer(&c.handle)), uintptr(o.Size),
			uintptr(o.Rank), uintptr(unsafe.Pointer(cfg))))
	}
	if r == success || r == inProgress {
		return nil
	}
	return l.errorOf(c.dev.String()+": "+call, r, 0)
}

// comm is the handle, which a thread of NCCL clears when it fails to make it.
func (c *Comm) comm() uintptr { return atomic.LoadUintptr(&c.handle) }

// joined waits until the communicator is made.
func (c *Comm) joined(ctx context.Context) error {
	for wait := (pause{}); ; wait.next() {
		c.mu.Lock()
		r, err := c.poll("making the communicator")
		c.mu.Unlock()
		if err != nil || r == success {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: waiting for all ranks to start NCCL: %w", c.dev, context.Cause(ctx))
		}
	}
}

// poll asks whether the latest call is done. c.mu is held.
func (c *Comm) poll(call string) (int32, error) {
	h := c.comm()
	if h == 0 {
		return 0, fmt.Errorf("%s: %s: NCCL gave up: %s", c.dev, call, dl.GoString(c.lib.getLastError.Call(0)))
	}
	if r := int32(c.lib.getAsyncError.Call(h, uintptr(unsafe.Pointer(&c.state)))); r != success {
		return 0, c.lib.errorOf(c.dev.String()+": ncclCommGetAsyncError", r, h)
	}
	if r := c.state; r != success && r != inProgress {
		return 0, c.lib.errorOf(c.dev.String()+": "+call, r, h)
	}
	return c.state, nil
}

// call runs f, which makes one or more calls, and waits until NCCL is done with it.
func (c *Comm) call(name string, f func(comm uintptr) int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	select {
	case <-c.ending:
		return ErrAborted
	default:
	}
	defer c.dev.Bind()()
	c.broken = c.settle(name, f(c.comm()))
	return c.broken
}

// settle waits until a call with result r is done. c.mu is held.
func (c *Comm) settle(name string, r int32) error {
	if r != success && r != inProgress {
		return c.lib.errorOf(c.dev.String()+": "+name, r, c.comm())
	}
	begin := time.Now()
	for wait := (pause{}); ; wait.next() {
		r, err := c.poll(name)
		if err != nil || r == success {
			return err
		}
		select {
		case <-c.ending:
			return ErrAborted
		default:
		}
		if time.Since(begin) > c.o.Patience {
			return fmt.Errorf("%s: %s: %w (%s)", c.dev, name, ErrSlow, c.o.Patience)
		}
	}
}

// Failed returns the error that NCCL met after a call had returned, such as a lost
// peer; nil if there is none, or a call is being made.
func (c *Comm) Failed() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	select {
	case <-c.ending:
		return nil // who ends it knows why
	default:
	}
	_, c.broken = c.poll("on the stream")
	return c.broken
}

// Abort ends the communicator: its kernels leave the GPU, a call under way returns.
// All ranks have to do it. It waits until NCCL has let go, at most for patience.
func (c *Comm) Abort(patience time.Duration) error {
	return c.end(false, patience)
}

// Close ends a communicator whose calls have all ended, on all ranks. It waits until
// NCCL has let go, at most for patience.
func (c *Comm) Close(patience time.Duration) error {
	return c.end(true, patience)
}

func (c *Comm) end(gently bool, patience time.Duration) error {
	c.once.Do(func() {
		close(c.ending)
		go c.routineEnd(gently, time.Now().Add(patience))
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.ended:
		return c.endErr
	case <-timer.C:
		return fmt.Errorf("%s: NCCL has not let go of a communicator within %s", c.dev, patience)
	}
}

// routineEnd makes NCCL free the communicator. The first Abort or Close starts it; it
// ends when NCCL is done, which a GPU that hangs may prevent.
func (c *Comm) routineEnd(gently bool, until time.Time) {
	defer close(c.ended)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.dev.Bind()()
	if gently && c.broken == nil {
		if c.endErr = c.finalize(until); c.endErr == nil {
			return
		}
	}
	if h := c.comm(); h != 0 {
		if r := int32(c.lib.abort.Call(h)); r != success {
			c.endErr = errors.Join(c.endErr, c.lib.errorOf(c.dev.String()+": ncclCommAbort", r, 0))
		}
	}
}

// finalize ends the communicator in agreement with the other ranks. c.mu is held.
func (c *Comm) finalize(until time.Time) error {
	const name = "ncclCommFinalize"
	h := c.comm()
	if r := int32(c.lib.finalize.Call(h)); r != success && r != inProgress {
		return c.lib.errorOf(c.dev.String()+": "+name, r, h)
	}
	for wait := (pause{}); ; wait.next() {
		r, err := c.poll(name)
		if err != nil {
			return err
		}
		if r == success {
			break
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s: %s: %w", c.dev, name, ErrSlow)
		}
	}
	if r := int32(c.lib.destroy.Call(h)); r != success {
		return c.lib.errorOf(c.dev.String()+": ncclCommDestroy", r, 0)
	}
	return nil
}

// Path is how the ranks reach each other. It is known once a call has been made.
func (c *Comm) Path() Path {
	log, err := c.lib.talk.since(c.logStart)
	if err != nil {
		return Path{Err: err}
	}
	return readPath(log, c.o.Rank)
}

// pause is the time between two looks: none at first, for a call takes microseconds
// as a rule, and growing then.
type pause struct {
	looks int
	sleep time.Duration
}

func (p *pause) next() {
	if p.looks++; p.looks < 500 {
		return
	}
	p.sleep = min(max(2*p.sleep, 20*time.Microsecond), time.Millisecond)
	time.Sleep(p.sleep)
}
