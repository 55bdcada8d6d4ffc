package dma

import (
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/runtime/device"
)

// Awaited is the rank for which the copies of the running call wait, as this rank's
// counters say: one whose part has not come or may not be sent yet, else one that has not
// said that it is done. ok is false where no such call runs. It reads them from the GPU
// and waits for that until ctx ends. One goroutine at a time may call it or Abort.
func (t *Team) Awaited(ctx context.Context) (rank int, ok bool, err error) {
	if t.rescue == nil || t.flags.own.Len() == 0 {
		return 0, false, nil // no call was made
	}
	n := 2 * t.size // counters
	counters, seen := t.words.Slice(countersAt, countersAt+4*n), t.words.Slice(seenAt, seenAt+4)
	t.rescue.Copy(seen, t.passed())
	for i := range n {
		t.rescue.Copy(counters.Slice(4*i, 4*i+4), t.flags.own.Slice(i*lineBytes, i*lineBytes+4))
	}
	if err := t.rescue.Synchronize(ctx); err != nil {
		return 0, false, fmt.Errorf("copy engines: reading the counters: %w", err)
	}
	now := device.View[uint32](seen)[0] + 1
	if t.enqueuing.TryLock() { // else a round is being enqueued, and so there is one
		seq := t.seq
		t.enqueuing.Unlock()
		if int32(seq-now) < 0 {
			return 0, false, nil
		}
	}
	rank, ok = t.missing(device.View[uint32](counters), now)
	return rank, ok, nil
}

// missing is the first peer whose counter of the earliest step is below round now.
// counters are those of each rank, a step after the other.
func (t *Team) missing(counters []uint32, now uint32) (rank int, ok bool) {
	for step := range 2 {
		for p := range t.peers() {
			if int32(counters[2*p+step]-now) < 0 {
				return p, true
			}
		}
	}
	return 0, false
}
