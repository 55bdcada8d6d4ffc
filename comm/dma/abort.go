package dma

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/device"
)

const (
	// abortWithin bounds how long Join and Close wait for the calls of a team that is
	// aborted.
	abortWithin = 10 * time.Second
	// refill is the time between two looks of Abort.
	refill = time.Millisecond
)

// Abort makes calls that wait for a peer end, with whatever data there is, and later
// ones fail with err. It returns once this rank's calls have ended, with an error if
// they have not within the given time. Any goroutine may call it, one at a time, and
// may do so again.
//
// Kernels look at a word of the host's from time to time. For copies it puts the counters
// further than any call waits for, and does so again and again: a peer whose stream is
// behind still writes the numbers of its calls over them.
//
// A call that is being enqueued may wait for room on the stream, and so for Abort, which
// therefore takes no lock of its.
func (t *Team) Abort(err error, within time.Duration) error {
	t.mu.Lock()
	if t.aborted == nil {
		t.aborted = fmt.Errorf("collectives between GPUs: %w", err)
	}
	t.mu.Unlock()
	if t.words.Len() > 0 {
		atomic.StoreUint32(&device.View[uint32](t.words)[stopAt/4], 1)
	}
	if t.rescue == nil || t.flags.own.Len() == 0 {
		return nil // no call was made
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), within,
		fmt.Errorf("calls that were aborted are still on the GPU after %s", within))
	defer cancel()
	for {
		ended, err := t.release(ctx)
		if err != nil {
			return fmt.Errorf("collectives between GPUs: %w", err)
		}
		if ended {
			return nil
		}
		select {
		case <-time.After(refill):
		case <-ctx.Done():
			return fmt.Errorf("collectives between GPUs: %w", context.Cause(ctx))
		}
	}
}

// release lets copies that wait go on, and reports whether all calls have ended.
func (t *Team) release(ctx context.Context) (all bool, err error) {
	seen := t.words.Slice(seenAt, seenAt+4+kinds*flagBytes)
	v := device.View[uint32](seen)
	t.rescue.Copy(seen.Slice(0, 4), t.passed())
	if t.box.own.Len() > 0 {
		t.rescue.Copy(seen.Slice(4, seen.Len()), t.ended())
	}
	if err := t.rescue.Synchronize(ctx); err != nil {
		return false, err
	}
	passed, ended := v[0], [kinds]uint32(v[1:])
	// Numbers that are further than any of a call that this rank is at, or enqueues now.
	t.rescue.Fill32(t.flags.own.Slice(0, 2*t.size*lineBytes), passed+1<<29)
	if err := t.rescue.Synchronize(ctx); err != nil {
		return false, err
	}
	if !t.enqueuing.TryLock() {
		return false, nil
	}
	defer t.enqueuing.Unlock()
	return passed == t.seq && ended == t.blocks, nil
}

// failure is what the team was aborted with.
func (t *Team) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.aborted
}

// passed is the number of the round that this rank's stream has come through, which
// it tells itself. Streams that have failed tell the host no more.
func (t *Team) passed() device.Buffer {
	at := 2 * t.size * lineBytes
	return t.flags.own.Slice(at, at+4)
}

// Behind is the rank for which a kernel of this rank's said that it waits, which kernels do
// from time to time while a wait is long. ok is false where none has since the latest was
// enqueued. Any goroutine may call it, until Close.
func (t *Team) Behind() (rank int, ok bool) {
	if t.words.Len() == 0 {
		return 0, false
	}
	said := atomic.LoadUint64(t.behind())
	return int(said&0xff) - 1, said != 0
}

func (t *Team) behind() *uint64 { return (*uint64)(unsafe.Pointer(&t.words.Bytes()[behindAt])) }
