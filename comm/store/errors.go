package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Every failed call of a Client returns an *Error that wraps one of these, or
// context.DeadlineExceeded, or context.Canceled.
var (
	// ErrNotFound: Get found no such key.
	ErrNotFound = errors.New("no such key")
	// ErrStaleAttempt: the caller belongs to an attempt that has been retired.
	// It should exit; a newer attempt is or will be running.
	ErrStaleAttempt = errors.New("this attempt has been retired")
	// ErrToken: the server runs with another job token.
	ErrToken = errors.New("the store refuses the job token")
	// ErrServerLost: the server died, froze, was closed, or cannot be reached any
	// more. A client that lost its server stays lost.
	ErrServerLost = errors.New("the store is gone")
	// ErrSwallowed comes with ErrServerLost: the server answers a new connection, on
	// which little is said, while nothing comes over the one that has been in use.
	ErrSwallowed = errors.New("small messages arrive, large ones do not: the path's MTU is smaller than the interface's, and the ICMP that should say so is dropped: set the interface's MTU to the path's on all hosts")
	// ErrTooLarge: the value exceeds MaxValue.
	ErrTooLarge = errors.New("value too large for the store")
	// ErrClosed: the client, or the watch, was closed by its owner.
	ErrClosed = errors.New("closed")
)

// Error says which call failed, for whom, where, and after how long.
type Error struct {
	Op      string // "set", "wait", "dial", ...
	Key     string // key or prefix; empty where the call has none
	Job     string
	Attempt int
	Host    string // the caller's host, where Options name it
	Addr    string // the server's address
	After   time.Duration
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: %s", e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", e.Key)
	}
	fmt.Fprintf(&b, " (job %q, attempt %d", e.Job, e.Attempt)
	if e.Host != "" {
		fmt.Fprintf(&b, ", on %s", e.Host)
	}
	fmt.Fprintf(&b, ") at %s after %s: %v", e.Addr, e.After.Round(time.Millisecond), e.Err)
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// fromStatus turns gRPC's answer into the package's own errors.
func fromStatus(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch st.Code() {
	case codes.NotFound:
		return ErrNotFound
	case codes.FailedPrecondition:
		return fmt.Errorf("%w (%s)", ErrStaleAttempt, st.Message())
	case codes.Unauthenticated:
		return fmt.Errorf("%w: give every host the same GORUN_TOKEN or token file", ErrToken)
	case codes.Unavailable:
		return fmt.Errorf("%w: %s", ErrServerLost, st.Message())
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Canceled:
		return context.Canceled
	default:
		return errors.New(st.Message())
	}
}
