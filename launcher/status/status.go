// Package status is the language in which a training worker tells the agent
// that started it how the run goes: one JSON object a line on the pipe whose
// descriptor stands in GORUN_STATUS_FD.
//
// A worker takes a Writer from FromEnv. The agent decodes each line into an
// Event. A worker that was started without an agent gets a Writer that renders
// plain lines on stdout instead, so that the same program runs alone.
package status

import (
	"encoding/json"
	"fmt"
	"math"
)

// FDVariable names the environment variable that holds the descriptor of the
// status pipe.
const FDVariable = "GORUN_STATUS_FD"

// Float is a number that may be NaN or infinite, which JSON's numbers cannot
// be: those three travel as strings.
type Float float64

// MarshalJSON writes a number, or "NaN", "+Inf", "-Inf" as a string.
func (f Float) MarshalJSON() ([]byte, error) {
	v := float64(f)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return json.Marshal(fmt.Sprint(v))
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (f *Float) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*f = Float(math.NaN())
	case `"+Inf"`:
		*f = Float(math.Inf(1))
	case `"-Inf"`:
		*f = Float(math.Inf(-1))
	default:
		return json.Unmarshal(b, (*float64)(f))
	}
	return nil
}

// Progress is the state after one optimizer step.
type Progress struct {
	Step    int    `json:"step"`               // steps done
	Total   int    `json:"total"`              // steps of the whole run; 0 = not known
	Loss    Float  `json:"loss"`               // nats per target token, this step
	ValLoss *Float `json:"val_loss,omitempty"` // set where this step ended in an evaluation

	LR         Float `json:"lr"`
	GradNorm   Float `json:"grad_norm"`
	TokensPerS Float `json:"tokens_per_s"` // of the whole job
	ETA        Float `json:"eta_s"`        // seconds until Total; 0 = not known
}

// Message is one notice for the user, a line or more.
type Message struct {
	Text string `json:"text"`
}

// Sample is text that the model generated.
type Sample struct {
	Step   int    `json:"step"`
	Prompt string `json:"prompt,omitempty"`
	Text   string `json:"text"`
}

// Summary is the block of lines that ends a run.
type Summary struct {
	Lines []string `json:"lines"`
}

// Event is one line of the pipe: exactly one of its fields is set.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	Message  *Message  `json:"message,omitempty"`
	Sample   *Sample   `json:"sample,omitempty"`
	Summary  *Summary  `json:"summary,omitempty"`
}

// Decode reads one line of the pipe. A line that is no Event, or sets none or
// several of the fields, is an error.
func Decode(line []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("status line: %w", err)
	}
	n := 0
	for _, set := range []bool{e.Progress != nil, e.Message != nil, e.Sample != nil, e.Summary != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return Event{}, fmt.Errorf("status line: %d of progress, message, sample and summary are set, want one", n)
	}
	return e, nil
}
