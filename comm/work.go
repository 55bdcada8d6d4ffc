package comm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// Work is a collective that was enqueued. The stream orders what comes after it;
// Wait is for hosts that want to know.
type Work struct {
	header transport.Header

	mu       sync.Mutex
	finished bool
	done     chan struct{} // made by the first who waits, closed by finish
	result   Result
}

// Result is how a collective ended.
type Result struct {
	Algorithm      Algorithm
	Predicted      time.Duration // by the cost model; 0 where there was nothing to choose
	Sent, Received int64         // bytes of data that this rank moved over links; computed where they are of a GPU
	Start, End     time.Time
	Err            error
}

// Done is closed when the collective has ended, well or badly.
func (w *Work) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done = make(chan struct{})
		if w.finished {
			close(w.done)
		}
	}
	return w.done
}

// Wait blocks until the collective has ended, and returns its error. ctx bounds
// the wait alone; the collective goes on.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.Done():
		return w.Err()
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s: %w", w.header, context.Cause(ctx))
	}
}

// Err is why the collective failed; nil if it succeeded or goes on.
func (w *Work) Err() error { return w.Result().Err }

// Result is how the collective ended, zero while it goes on.
func (w *Work) Result() Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

// String is the call: AllReduce(sum, f32, 1024) #17.
func (w *Work) String() string { return w.header.String() }

// finish ends the work; only the first call counts.
func (w *Work) finish(r Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return
	}
	w.finished, w.result = true, r
	if w.done != nil {
		close(w.done)
	}
}
