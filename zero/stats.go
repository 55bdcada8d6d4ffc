package zero

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Stats is what the last window cost, from the Finish before it to its own. Times
// count from StepBegin of its last micro-step on the compute stream.
type Stats struct {
	// Exposed is how long the compute stream stood still for communication, in all
	// micro-steps: for buffers, for weights, for the last reduction, and in AllReduce
	// behind it.
	Exposed time.Duration
	// End is when the compute stream came to the end of the last backward pass.
	End time.Duration
	// Sent is of the gradients of the window, and of the weights gathered for it.
	Sent Sent
	// Memory is what this Zero has allocated so far; Moments is 0.
	Memory  Memory
	Buckets []BucketStats // of the last micro-step, in the order of reduction
}

// BucketStats is one bucket's reduction. From Ready to Start it waited for what was
// enqueued before it.
type BucketStats struct {
	Ready time.Duration // the last gradient was written
	Start time.Duration // the communication stream came to it
	Done  time.Duration
}

// timeline is the events of a window.
type timeline struct {
	begin, end device.Event // on the compute stream, around the last micro-step's passes
	waits      []wait
	buckets    []bucketEvents // of the last micro-step
	sent       Sent
}

// wait is a place on the compute stream where it may stand still.
type wait struct{ before, after device.Event }

type bucketEvents struct{ ready, start, done device.Event }

func (b bucketEvents) release() { release(b.ready, b.start, b.done) }

// waitFor makes the compute stream wait for e, and within a micro-step takes the time.
func (z *Zero) waitFor(e device.Event) {
	if z.open {
		z.measure(&z.current, e)
	} else {
		z.compute.Wait(e)
	}
}

func (z *Zero) measure(t *timeline, e device.Event) {
	before := z.compute.Record()
	z.compute.Wait(e)
	t.waits = append(t.waits, wait{before, z.compute.Record()})
}

// finishTimeline makes the current window's the last.
func (z *Zero) finishTimeline() {
	z.current.sent, z.sent = z.sent, Sent{}
	old := z.last
	z.last, z.current = z.current, timeline{}
	release(old.begin, old.end)
	for _, w := range old.waits {
		release(w.before, w.after)
	}
	for _, b := range old.buckets {
		b.release()
	}
}

// release gives events of a GPU back to its pool, where the garbage collector
// would put them only when the host's memory fills up. What streams wait for by
// then stays.
func release(events ...device.Event) {
	for _, e := range events {
		if r, ok := e.(interface{ Release() }); ok {
			r.Release()
		}
	}
}

// Stats waits for the end of the last synced micro-step, and of the AllReduce
// behind it, and tells how the window went. Called after the host has waited for the
// optimizer anyway, it costs nothing. It fails when there was no synced micro-step,
// when a stream failed, or when ctx ends.
func (z *Zero) Stats(ctx context.Context) (Stats, error) {
	t := z.last
	if t.end == nil {
		return Stats{}, errors.New("zero: Stats must follow a synced micro-step's Finish")
	}
	if err := t.waits[len(t.waits)-1].after.Sync(ctx); err != nil {
		return Stats{}, fmt.Errorf("zero: %s: waiting for the reduction: %w", agree.Who(z.group, z.group.Rank()), err)
	}
	var errs []error
	since := func(e, begin device.Event) time.Duration {
		took, err := e.Since(begin)
		errs = append(errs, err)
		return took
	}
	s := Stats{End: since(t.end, t.begin), Sent: t.sent, Memory: z.held, Buckets: make([]BucketStats, len(t.buckets))}
	for _, w := range t.waits {
		s.Exposed += since(w.after, w.before)
	}
	for i, b := range t.buckets {
		s.Buckets[i] = BucketStats{since(b.ready, t.begin), since(b.start, t.begin), since(b.done, t.begin)}
	}
	return s, errors.Join(errs...)
}
