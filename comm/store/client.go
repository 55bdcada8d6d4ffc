package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

// bound gives ctx the default timeout where it has no deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.o.Timeout)
}

func (c *Client) fail(op, key string, start time.Time, err error) error {
	return &Error{Op: op, Key: key, Job: c.o.Job, Attempt: c.o.Attempt, Host: c.o.Host,
		Addr: c.addr, After: time.Since(start), Err: err}
}

// reason turns the error of a call into the one that its caller should see. A
// lost server is remembered, so that all of the client's calls agree.
func (c *Client) reason(err error) error {
	err = fromStatus(err)
	if errors.Is(err, ErrServerLost) {
		c.end(err)
	}
	if cause := context.Cause(c.life); cause != nil {
		return cause
	}
	return err
}

// call makes one request, bounded by ctx, the default timeout and the client's life.
func call[Req, Reply any](ctx context.Context, c *Client, op, key string, req Req,
	rpc func(context.Context, Req, ...grpc.CallOption) (Reply, error)) (Reply, error) {
	start := time.Now()
	ctx, cancel := c.bound(ctx)
	defer cancel()
	stop := context.AfterFunc(c.life, cancel)
	defer stop()
	reply, err := rpc(ctx, req)
	if err != nil {
		err = c.reason(err)
		if op == "wait" && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: nobody has set the key; the peer that should has died or is late", err)
		}
		return reply, c.fail(op, key, start, err)
	}
	return reply, nil
}

// check refuses what the server would refuse, without sending it.
func (c *Client) check(op, key string, value []byte) error {
	if err := checkKey(key); err != nil {
		return c.fail(op, key, time.Now(), err)
	}
	if len(value) > MaxValue {
		return c.fail(op, key, time.Now(), fmt.Errorf("%w: %d bytes, at most %d; data goes between ranks directly",
			ErrTooLarge, len(value), MaxValue))
	}
	return nil
}

// Set stores val under key, over what was there.
func (c *Client) Set(ctx context.Context, key string, val []byte) error {
	if err := c.check("set", key, val); err != nil {
		return err
	}
	_, err := call(ctx, c, "set", key, &storepb.SetRequest{Scope: c.scope, Key: key, Value: val}, c.rpc.Set)
	return err
}

// Get returns the key's value, or ErrNotFound.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	return c.get(ctx, "get", key, false)
}

// Wait blocks until the key exists and returns its value.
func (c *Client) Wait(ctx context.Context, key string) ([]byte, error) {
	return c.get(ctx, "wait", key, true)
}

func (c *Client) get(ctx context.Context, op, key string, wait bool) ([]byte, error) {
	if err := c.check(op, key, nil); err != nil {
		return nil, err
	}
	r, err := call(ctx, c, op, key, &storepb.GetRequest{Scope: c.scope, Key: key, Wait: wait}, c.rpc.Get)
	return r.GetValue(), err
}

// Add adds delta to the number that key holds and returns the sum. An absent key
// counts as 0. The sum is kept as decimal text, as Get and Wait then show it.
func (c *Client) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if err := c.check("add", key, nil); err != nil {
		return 0, err
	}
	r, err := call(ctx, c, "add", key, &storepb.AddRequest{Scope: c.scope, Key: key, Delta: delta}, c.rpc.Add)
	return r.GetSum(), err
}

// CompareAndSet stores new under key if the key's value equals old; a nil old means
// that the key must not exist (an empty one means an empty value). It returns the
// value after the call, nil where the key does not exist, and whether it was stored.
func (c *Client) CompareAndSet(ctx context.Context, key string, old, new []byte) (current []byte, swapped bool, err error) {
	if err := c.check("compare-and-set", key, new); err != nil {
		return nil, false, err
	}
	if err := c.check("compare-and-set", key, old); err != nil {
		return nil, false, err
	}
	r, err := call(ctx, c, "compare-and-set", key,
		&storepb.CompareAndSetRequest{Scope: c.scope, Key: key, Old: old, New: new}, c.rpc.CompareAndSet)
	if err != nil {
		return nil, false, err
	}
	return r.Current, r.Swapped, nil
}

// Delete removes the key. An absent one is no error.
func (c *Client) Delete(ctx context.Context, key string) error {
	if err := c.check("delete", key, nil); err != nil {
		return err
	}
	_, err := call(ctx, c, "delete", key, &storepb.DeleteRequest{Scope: c.scope, Key: key}, c.rpc.Delete)
	return err
}

// Retire ends the client's own attempt, and every earlier one of its job, for
// everybody: their keys are dropped, their pending and later calls get
// ErrStaleAttempt. To retire twice is no error.
func (c *Client) Retire(ctx context.Context) error {
	_, err := call(ctx, c, "retire", "", &storepb.RetireRequest{Scope: c.scope}, c.rpc.Retire)
	return err
}
