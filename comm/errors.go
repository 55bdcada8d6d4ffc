package comm

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
	transport.TimeoutError            // as the rank saw it that noticed first; Peer is -1 where that is not known
	Rank                   int        // who that was
	GPU                    string     // its GPU, for a call on GPU memory: "cuda:0"
	Silent                 []int      // ranks that did not say where they are: stopped, or cut off
	Behind                 []Position // ranks that have not entered the call, or a Send or Recv
	Link                   string     // what the call goes over: "tcp", "shared memory", "NCCL, NVLink (P2P/CUMEM)"
	// Waits is for whom ranks wait in a call that all have entered, as far as they can
	// tell. Over links the first is the one that matters: it has got least far.
	Waits []Wait
}

// Wait is a rank that waits for another within a call.
type Wait struct {
	Rank     int
	Host     string
	For      int
	ForHost  string
	Messages int // that it has received in the call, -1 where that is not known
}

func (w Wait) String() string {
	s := fmt.Sprintf("rank %d on %s waits for rank %d on %s", w.Rank, w.Host, w.For, w.ForHost)
	if w.Messages >= 0 {
		s += fmt.Sprintf(" after %d messages", w.Messages)
	}
	return s
}

// Position is how far a rank has come.
type Position struct {
	Rank     int
	Host     string
	Progress          // of its calls on host memory
	GPU      Progress // of its calls on GPU memory
	Closed   bool     // it has closed the group
	// Stacks is what its process is doing, a goroutine each, the innermost call
	// first: the one that made the group, and the streams at work.
	Stacks []string
}

// Progress is how far a rank's calls have come.
type Progress struct {
	Ended    *transport.Header // its latest call that ended
	Running  *transport.Header // the call it is in
	Enqueued *transport.Header // its first call that waits for its stream, or for the call before it
	Awaits   *Awaited          // for whom it waits in Running; nil where it cannot tell
}

// Awaited is a rank that another waits for in a call.
type Awaited struct {
	Rank     int
	Messages int // received in the call so far, -1 where that is not known
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
	if e.Peer >= 0 {
		fmt.Fprintf(&b, "rank %d %s", e.Rank, e.TimeoutError.Error())
	} else {
		fmt.Fprintf(&b, "rank %d waited %s in %s", e.Rank, e.Wait.Round(time.Millisecond), e.Call)
	}
	if e.GPU != "" {
		fmt.Fprintf(&b, " on %s", e.GPU)
	}
	if e.Link != "" {
		fmt.Fprintf(&b, " over %s", e.Link)
	}
	for _, r := range e.Silent {
		fmt.Fprintf(&b, "; rank %d does not answer: it is stopped, gone or cut off", r)
	}
	for i := range e.Behind {
		p := &e.Behind[i]
		fmt.Fprintf(&b, "; rank %d on %s has not entered %s", p.Rank, p.Host, e.Call)
		at := p.of(e.GPU != "")
		if at.Running != nil {
			fmt.Fprintf(&b, ", it is in %s", at.Running)
		} else if at.Ended != nil {
			fmt.Fprintf(&b, ", it last finished %s", at.Ended)
		}
		if e.GPU != "" && at.Enqueued != nil {
			fmt.Fprintf(&b, ", it has enqueued %s on a stream whose work before it is not done", at.Enqueued)
		}
		if len(p.Stacks) > 0 {
			fmt.Fprintf(&b, ", and is at %s", strings.Join(p.Stacks, ", and at "))
		}
	}
	switch {
	case len(e.Silent)+len(e.Behind) > 0:
	case len(e.Waits) > 0 && e.GPU == "":
		fmt.Fprintf(&b, "; all ranks are in it, and the one that has got least far is behind or cut off: %s", e.Waits[0])
	case len(e.Waits) > 0:
		b.WriteString("; all ranks have got to it")
		for _, w := range e.Waits {
			fmt.Fprintf(&b, ", %s", w)
		}
	}
	if e.GPU != "" && len(e.Silent)+len(e.Behind)+len(e.Waits) == 0 {
		b.WriteString("; all ranks have got to it: either an earlier call was not the same on all of them, " +
			"which Options.Check (GORUN_COMM_CHECK=1) finds, or the GPUs do not reach each other, which NCCL_DEBUG=INFO shows")
	}
	return b.String()
}

// Unwrap gives the *transport.TimeoutError.
func (e *StuckError) Unwrap() error { return &e.TimeoutError }
