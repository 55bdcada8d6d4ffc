package comm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gorun-dev/gorun/comm/transport"
)

// ErrClosed is what calls on a group fail with that this rank has closed.
var ErrClosed = errors.New("comm: this rank has closed the group")

// DeadError is what every call on a failed group returns. Err is the same on all
// ranks: a *transport.MismatchError, *transport.PeerError, *StuckError,
// *StreamError, *CallError or *AbortError.
type DeadError struct {
	Group      string
	Rank, Size int // of who reports it
	Host       string
	Err        error
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("group %s failed (seen by rank %d of %d on %s): %v", e.Group, e.Rank, e.Size, e.Host, e.Err)
}

func (e *DeadError) Unwrap() error { return e.Err }

// AbortError says that a rank called Abort.
type AbortError struct {
	Rank int
	Host string
	Err  error
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("rank %d on %s called Abort: %v", e.Rank, e.Host, e.Err)
}

func (e *AbortError) Unwrap() error { return e.Err }

// StreamError says that a rank's stream failed before a call on it could run.
type StreamError struct {
	Rank int
	Host string
	Err  error
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("on rank %d on %s, work before a collective failed: %v", e.Rank, e.Host, e.Err)
}

func (e *StreamError) Unwrap() error { return e.Err }

// CallError says that a rank could not make or carry out a call.
type CallError struct {
	Rank int
	Host string
	Call transport.Header
	Err  error
}

func (e *CallError) Error() string {
	if e.Call.Kind == 0 { // while the group is made
		return fmt.Sprintf("rank %d on %s: %v", e.Rank, e.Host, e.Err)
	}
	return fmt.Sprintf("rank %d on %s, %s: %v", e.Rank, e.Host, e.Call, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// StuckError says that a call was not done in time, and which ranks are to blame.
type StuckError struct {
	transport.TimeoutError            // as the rank saw it that noticed first
	Rank                   int        // who that was
	Silent                 []int      // ranks that did not say where they are: stopped, or cut off
	Behind                 []Position // ranks that have not entered the call, or a Send or Recv
}

// Position is how far a rank has come.
type Position struct {
	Rank    int
	Host    string
	Ended   *transport.Header // its latest call that ended
	Running *transport.Header // the call it is in
	Closed  bool              // it has closed the group
	// Stacks is what its process is doing, a goroutine each, the innermost call
	// first: the one that made the group, and the streams at work.
	Stacks []string
}

func (p Position) String() string {
	s := fmt.Sprintf("rank %d on %s", p.Rank, p.Host)
	switch {
	case p.Closed:
		s += " has closed the group"
	case p.Running != nil:
		s += fmt.Sprintf(" is in %s", p.Running)
	default:
		s += " is in no call"
	}
	if p.Ended != nil {
		return s + fmt.Sprintf("; it last finished %s", p.Ended)
	}
	return s + "; it has finished none"
}

func (e *StuckError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d %s", e.Rank, e.TimeoutError.Error())
	for _, r := range e.Silent {
		fmt.Fprintf(&b, "; rank %d does not answer: it is stopped, gone or cut off", r)
	}
	for _, p := range e.Behind {
		fmt.Fprintf(&b, "; rank %d on %s has not entered %s", p.Rank, p.Host, e.Call)
		if p.Running != nil {
			fmt.Fprintf(&b, ", it is in %s", p.Running)
		} else if p.Ended != nil {
			fmt.Fprintf(&b, ", it last finished %s", p.Ended)
		}
		if len(p.Stacks) > 0 {
			fmt.Fprintf(&b, ", and is at %s", strings.Join(p.Stacks, ", and at "))
		}
	}
	return b.String()
}

// Unwrap gives the *transport.TimeoutError.
func (e *StuckError) Unwrap() error { return &e.TimeoutError }
