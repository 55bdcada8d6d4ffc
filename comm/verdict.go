package comm

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
)

// verdict is why a group failed, in the form in which it is stored.
type verdict struct {
	Kind     string
	Rank     int    // to blame
	Host     string // its host
	Text     string
	Call     *transport.Header        `json:",omitempty"`
	Mismatch *transport.MismatchError `json:",omitempty"`
	Stuck    *StuckError              `json:",omitempty"`

	cause error // behind Text, where this rank found it
}

func verdictOf(g *Group, err error) verdict {
	if e, ok := errors.AsType[*transport.MismatchError](err); ok {
		return verdict{Kind: "mismatch", Rank: e.Rank, Mismatch: e}
	}
	if e, ok := errors.AsType[*StuckError](err); ok {
		return verdict{Kind: "stuck", Rank: e.Rank, Stuck: e}
	}
	if e, ok := errors.AsType[*transport.PeerError](err); ok {
		return verdict{Kind: "peer", Rank: e.Peer, Host: g.members[e.Peer].Host, Text: e.Err.Error(), cause: e.Err}
	}
	if e, ok := errors.AsType[*AbortError](err); ok {
		return verdict{Kind: "abort", Rank: e.Rank, Host: e.Host, Text: e.Err.Error(), cause: e.Err}
	}
	if e, ok := errors.AsType[*StreamError](err); ok {
		return verdict{Kind: "stream", Rank: e.Rank, Host: e.Host, Text: e.Err.Error(), cause: e.Err}
	}
	if e, ok := errors.AsType[*CallError](err); ok {
		return verdict{Kind: "call", Rank: e.Rank, Host: e.Host, Call: &e.Call, Text: e.Err.Error(), cause: e.Err}
	}
	return verdict{Rank: g.o.Rank, Host: g.o.Host, Text: err.Error(), cause: err}
}

// reason is the error that the verdict stands for.
func (v verdict) reason() error {
	cause := v.cause
	if cause == nil {
		cause = errors.New(v.Text)
	}
	switch {
	case v.Mismatch != nil:
		return v.Mismatch
	case v.Stuck != nil:
		return v.Stuck
	case v.Kind == "peer":
		return &transport.PeerError{Peer: v.Rank, Host: v.Host, Err: cause}
	case v.Kind == "abort":
		return &AbortError{v.Rank, v.Host, cause}
	case v.Kind == "stream":
		return &StreamError{v.Rank, v.Host, cause}
	case v.Kind == "call" && v.Call != nil:
		return &CallError{v.Rank, v.Host, *v.Call, cause}
	}
	return fmt.Errorf("rank %d on %s: %w", v.Rank, v.Host, cause)
}

func parseVerdict(b []byte) error {
	var v verdict
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("the reason in the store is unreadable (%q): %w", b, err)
	}
	return v.reason()
}
