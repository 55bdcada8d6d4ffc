package store

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

// Change is one change of a key.
type Change struct {
	Key     string
	Value   []byte // nil where Deleted
	Deleted bool
	// Revision counts the changes of the attempt. It rises strictly along a watch.
	Revision uint64
}

// Watcher delivers the changes under a prefix. Use it from one goroutine.
type Watcher struct {
	c       *Client
	prefix  string
	start   time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	changes chan Change // closed by routineReceive, once err is set
	err     error
}

// Watch delivers what exists under prefix, in the order in which it was written,
// and from then on every change, none left out. The empty prefix is all of the
// attempt's keys. The watch lasts until ctx ends, Close, the end of the client, or
// an error (a retired attempt, a lost server, a watcher too far behind), which Next
// returns. ctx needs no deadline here: Next has its own.
func (c *Client) Watch(ctx context.Context, prefix string) (*Watcher, error) {
	start := time.Now()
	if err := checkName("prefix", prefix); err != nil {
		return nil, c.fail("watch", prefix, start, err)
	}
	c.mu.Lock()
	if err := c.Err(); err != nil {
		c.mu.Unlock()
		return nil, c.fail("watch", prefix, start, err)
	}
	c.routines.Add(1)
	c.mu.Unlock()
	w := &Watcher{c: c, prefix: prefix, start: start, changes: make(chan Change, 16)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { w.cancel(context.Cause(c.life)) })
	stream, err := c.rpc.Watch(w.ctx, &storepb.WatchRequest{Scope: c.scope, Prefix: prefix})
	if err != nil {
		err = c.reason(err)
		stop()
		w.cancel(err)
		c.routines.Done()
		return nil, c.fail("watch", prefix, start, err)
	}
	go w.routineReceive(stream, stop)
	return w, nil
}

// routineReceive moves changes from the stream to Next. One per watch, started by
// Watch; ends with the stream, whose context Close and the client's end cancel.
func (w *Watcher) routineReceive(stream grpc.ServerStreamingClient[storepb.Change], stop func() bool) {
	defer w.c.routines.Done()
	defer stop()
	defer close(w.changes)
	for {
		m, err := stream.Recv()
		if err != nil {
			err = w.c.reason(err)
			if cause := context.Cause(w.ctx); cause != nil {
				err = cause
			}
			w.err = err
			w.cancel(err)
			return
		}
		c := Change{Key: m.Key, Value: m.Value, Deleted: m.Deleted, Revision: m.Revision}
		select {
		case w.changes <- c:
		case <-w.ctx.Done(): // Recv says so too, in its next turn
		}
	}
}

// Next returns the next change. Its wait is bounded by ctx's deadline or, without
// one, by Options.Timeout; after a timeout the watch goes on and Next may be called
// again. Any other error is final.
func (w *Watcher) Next(ctx context.Context) (Change, error) {
	start := time.Now()
	ctx, cancel := w.c.bound(ctx)
	defer cancel()
	select {
	case c, ok := <-w.changes:
		if !ok {
			return Change{}, w.c.fail("watch", w.prefix, w.start, w.err)
		}
		return c, nil
	case <-ctx.Done():
		return Change{}, w.c.fail("watch", w.prefix, start, ctx.Err())
	}
}

// Close ends the watch; Next then returns ErrClosed, after what it had received.
func (w *Watcher) Close() { w.cancel(ErrClosed) }
