package cluster

import (
	"fmt"
	"strings"
	"time"
)

// Failure is why an attempt ends: a worker that died or does not answer, a node
// that went silent, or the user's signal. The same record tells the referee what
// an agent saw of a worker that may not be at fault at all.
type Failure struct {
	Kind      Kind          `json:"kind"`
	How       How           `json:"how,omitempty"` // of a worker
	Node      int           `json:"node"`
	Host      string        `json:"host"`
	Rank      int           `json:"rank"` // -1 where no worker is at fault
	LocalRank int           `json:"local_rank"`
	PID       int           `json:"pid,omitempty"`
	Code      int           `json:"code"`                // exit status that the whole job ends with
	Signal    string        `json:"signal,omitempty"`    // that killed the worker
	Cause     string        `json:"cause"`               // "exit status 3", "killed by SIGKILL", "interrupted by SIGINT"
	Message   string        `json:"message"`             // first line of a panic, last of a traceback; may be empty
	Blames    []int         `json:"blames,omitempty"`    // other ranks that the worker itself holds responsible
	At        time.Time     `json:"-"`                   // when it happened, by the clock of whoever holds the record
	Age       time.Duration `json:"age,omitempty"`       // since then, when it was sent: hosts' clocks differ, and jump
	State     string        `json:"state,omitempty"`     // of the process when the attempt broke: "stopped (T)"
	StateFor  time.Duration `json:"state_for,omitempty"` // how long it had been in it, where that is unusual
	Log       string        `json:"log,omitempty"`       // the worker's stderr.log, on its host
	Started   bool          `json:"started"`             // false: the program could not be started, so restarting is no use
	Notes     []string      `json:"notes,omitempty"`     // what else was seen that may explain it
}

// Kind tells failures apart.
type Kind string

// The kinds of Failure.
const (
	WorkerFailed Kind = "worker"
	NodeLost     Kind = "node"
	UserSignal   Kind = "signal"
)

// How a worker came to its end.
type How string

// The ends of a worker.
const (
	Failed  How = "failed"  // by itself, with an error or by a signal
	Stopped How = "stopped" // it was in state T when the attempt broke
	Ended   How = "ended"   // with exit status 0 before anything was wrong
	Told    How = "told"    // because its agent asked it to
)

// phrases begin the report of a worker.
var phrases = map[How]string{
	Failed:  "failed first",
	Stopped: "stopped answering",
	Ended:   "ended while the others still needed it",
	Told:    "is blamed by the others",
}

// aged is f as it is sent. Both times are of this process, and so monotonic.
func (f Failure) aged(now time.Time) Failure {
	if !f.At.IsZero() {
		f.Age = now.Sub(f.At)
	}
	return f
}

// arrived is f as it is kept by whoever has just received it: its time is off by no
// more than it has travelled.
func (f Failure) arrived(now time.Time) Failure {
	f.At = now.Add(-f.Age)
	return f
}

// Brief is what workers are told of a failure for which they end. Whether it is the
// cause is not known by then.
func (f *Failure) Brief() string {
	if f.Kind != WorkerFailed {
		return f.Cause
	}
	return fmt.Sprintf("rank %d on host %s: %s", f.Rank, f.Host, f.Cause)
}

// String names the failure in one line.
func (f *Failure) String() string {
	var b strings.Builder
	if f.Kind == WorkerFailed {
		fmt.Fprintf(&b, "rank %d %s: %s (host %s, local rank %d", f.Rank, phrases[f.How], f.Cause, f.Host, f.LocalRank)
		if f.PID != 0 {
			fmt.Fprintf(&b, ", pid %d", f.PID)
		}
		b.WriteString(")")
	} else {
		b.WriteString(f.Cause)
	}
	if f.Message != "" {
		b.WriteString(": " + f.Message)
	}
	if f.Log != "" {
		b.WriteString("; see " + f.Log)
	}
	if len(f.Notes) > 0 {
		b.WriteString(" (" + strings.Join(f.Notes, "; ") + ")")
	}
	return b.String()
}
