package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/transport"
)

// ErrorFileVariable names the environment variable that holds the path of the
// file in which a worker may say why it fails.
const ErrorFileVariable = "TORCHELASTIC_ERROR_FILE"

// errorFile is its content.
type errorFile struct {
	Message string `json:"message"`
	Blames  []int  `json:"blames,omitempty"`
}

// RecordError tells the agent why this worker is about to end with an error, and,
// where err comes from a collective that another rank has broken, which one that
// is. The launcher then names that rank and not this one. Programs that use comm
// call it before os.Exit; one that does not is judged by its exit alone. It does
// nothing for nil and without an agent.
func RecordError(err error) error {
	path := os.Getenv(ErrorFileVariable)
	if err == nil || path == "" {
		return nil
	}
	b, e := json.Marshal(errorFile{Message: err.Error(), Blames: Blames(err)})
	if e == nil {
		e = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if e != nil {
		return fmt.Errorf("error file of this worker: %w", e)
	}
	return nil
}

// Blames returns the ranks that an error of a group of all ranks holds responsible:
// those that were lost, that do not answer or have not entered a call, that failed
// or called Abort. It is empty where the error has another reason, and where the
// ranks disagree about a call, for either may be wrong.
func Blames(err error) []int {
	if e, ok := errors.AsType[*comm.StuckError](err); ok {
		if len(e.Silent) > 0 {
			return e.Silent
		}
		if len(e.Behind) > 0 {
			var ranks []int
			for _, p := range e.Behind {
				ranks = append(ranks, p.Rank)
			}
			return ranks
		}
		if len(e.Waits) > 0 {
			return []int{e.Waits[0].For}
		}
		if e.Peer < 0 {
			return nil
		}
		return []int{e.Peer}
	}
	if _, ok := errors.AsType[*transport.MismatchError](err); ok {
		return nil
	}
	if e, ok := errors.AsType[*comm.AbortError](err); ok {
		return []int{e.Rank}
	}
	if e, ok := errors.AsType[*comm.StreamError](err); ok {
		return []int{e.Rank}
	}
	if e, ok := errors.AsType[*comm.CallError](err); ok {
		return []int{e.Rank}
	}
	if e, ok := errors.AsType[*transport.PeerError](err); ok {
		return []int{e.Peer}
	}
	if e, ok := errors.AsType[*transport.TimeoutError](err); ok {
		return []int{e.Peer}
	}
	return nil
}
