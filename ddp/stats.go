package ddp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Stats is what the last synced micro-step cost. Times count from its StepBegin
// on the compute stream.
type Stats struct {
	// Exposed is how long the compute stream stood still for communication: for
	// buckets at the end of the backward pass, for the rows of param.RowSink, and for
	// the broadcast of the buffers at the window's beginning.
	Exposed time.Duration
	// Within is the part of Exposed that lies within the backward pass: for the rows.
	Within time.Duration
	// End is when the compute stream came to the end of the backward pass.
	End time.Duration
	// Bytes is the size of all buckets as they were reduced, padding included;
	// 0 at one rank.
	Bytes int64
	// Sent is how many bytes this rank sent for them: what Options.Compress says, else
	// 2(n-1)/n of Bytes at n ranks, as rings and direct exchanges do.
	Sent int64
	// Rows is how many rows of all ranks travelled apart, see param.RowSink.
	Rows    int
	Buckets []BucketStats // in the order of reduction
}

// BucketStats is one bucket's reduction. From Ready to Start it waited for the
// buckets before it.
type BucketStats struct {
	Ready time.Duration // the last gradient was written
	Start time.Duration // the communication stream came to it
	Done  time.Duration
}

// timeline is the events on the compute stream of a synced micro-step.
type timeline struct {
	begin device.Event
	end   device.Event // of the backward pass
}

// forget lets go of the last synced micro-step's events.
func (d *DDP) forget() {
	device.Release(d.timeline.begin, d.timeline.end, d.rows.waits[0], d.rows.waits[1])
	d.rows.waits = [2]device.Event{}
	d.timeline = timeline{}
	for i := range d.buckets {
		b := &d.buckets[i]
		device.Release(b.ready, b.start, b.done, b.before, b.after)
		b.ready, b.start, b.done, b.before, b.after = nil, nil, nil, nil, nil
	}
}

// Stats waits for the end of the last synced micro-step and tells how it went.
// Called after the host has waited for the optimizer anyway, it costs nothing.
// The next StepBegin may forget the figures. It fails when there are none, when
// a stream failed, or when ctx ends.
func (d *DDP) Stats(ctx context.Context) (Stats, error) {
	t := d.timeline
	last := d.buckets[len(d.buckets)-1].after
	if last == nil {
		return Stats{}, errors.New("ddp: Stats must follow a synced micro-step's Finish")
	}
	if err := last.Sync(ctx); err != nil {
		return Stats{}, fmt.Errorf("ddp: %s: waiting for the reduction: %w", agree.Who(d.group, d.group.Rank()), err)
	}
	var errs []error
	since := func(e, begin device.Event) time.Duration {
		took, err := e.Since(begin)
		errs = append(errs, err)
		return took
	}
	s := Stats{End: since(t.end, t.begin), Buckets: make([]BucketStats, len(d.buckets))}
	if w := d.rows.waits; w[1] != nil {
		s.Within = since(w[1], w[0])
		s.Exposed += s.Within
		s.Rows = d.rows.n
	}
	if before, after := d.copying[0], d.copying[1]; after != nil {
		s.Exposed += since(after, before)
	}
	for i, b := range d.buckets {
		if d.group.Size() > 1 {
			s.Bytes += int64(b.wire.Buf.Len())
			s.Sent += b.sent
		}
		if b.after != nil {
			from := b.before
			if from == nil {
				from = t.end
			}
			s.Exposed += since(b.after, from)
		}
		s.Buckets[i] = BucketStats{since(b.ready, t.begin), since(b.start, t.begin), since(b.done, t.begin)}
	}
	return s, errors.Join(errs...)
}

// Finite reports whether the norm of the reduced gradients is a number. Every
// rank has the same gradients after the reduction, a NaN of one among them, so
// every rank gets the same answer and a training loop may skip the step on it
// without asking the others.
func Finite(norm float64) bool { return !math.IsNaN(norm) && !math.IsInf(norm, 0) }
