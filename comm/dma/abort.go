package dma

import (
	"context"
	"fmt"
	"time"

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
// It puts the counters further than any call waits for, and does so again and again: a
// peer whose stream is behind still writes the numbers of its calls over them.
func (t *Team) Abort(err error, within time.Duration) error {
	t.mu.Lock()
	if t.aborted == nil {
		t.aborted = fmt.Errorf("copy engines: %w", err)
	}
	t.mu.Unlock()
	if t.rescue == nil || t.flags.own.Len() == 0 {
		return nil // no call was made
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), within,
		fmt.Errorf("calls that were aborted are still on the GPU after %s", within))
	defer cancel()
	for {
		t.rescue.Fill32(t.flags.own.Slice(0, 2*t.size*lineBytes), t.seq+1<<29)
		t.rescue.Copy(t.seen, t.passed())
		if err := t.rescue.Synchronize(ctx); err != nil {
			return fmt.Errorf("copy engines: %w", err)
		}
		if device.View[uint32](t.seen)[0] == t.seq {
			return nil
		}
		select {
		case <-time.After(refill):
		case <-ctx.Done():
			return fmt.Errorf("copy engines: %w", context.Cause(ctx))
		}
	}
}

// passed is the number of the round that this rank's stream has come through, which
// it tells itself. Streams that have failed tell the host no more.
func (t *Team) passed() device.Buffer {
	at := 2 * t.size * lineBytes
	return t.flags.own.Slice(at, at+4)
}
