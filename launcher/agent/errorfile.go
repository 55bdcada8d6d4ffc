package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

// errorFile lies in the log folder of a worker that failed.
const errorFile = "error.json"

// errorRecord is the content of error.json. Its message has the shape that
// programs which write the file by themselves give it (torch's record): what
// such a program wrote is kept.
type errorRecord struct {
	Message   json.RawMessage `json:"message"`
	Cause     string          `json:"cause"`
	ExitCode  int             `json:"exit_code"` // -1 where a signal ended it
	Signal    string          `json:"signal,omitempty"`
	Rank      int             `json:"rank"`
	LocalRank int             `json:"local_rank"`
	Node      int             `json:"node"`
	Host      string          `json:"host"`
	PID       int             `json:"pid,omitempty"`
	Attempt   int             `json:"attempt"`
	Time      time.Time       `json:"time"`
	Blames    []int           `json:"blames,omitempty"` // other ranks, by the worker's own account
	Stderr    []string        `json:"stderr"`           // the last 50 lines
}

// recordFailure adds to f, which is to be said of a worker that ended with an
// error, what the worker itself says, and writes error.json. Its output is drained.
func recordFailure(p *process, f *cluster.Failure, attempt int) error {
	r := errorRecord{
		Cause: f.Cause, ExitCode: f.Code, Signal: f.Signal, Rank: p.rank, LocalRank: p.localRank, Node: f.Node,
		Host: f.Host, PID: f.PID, Attempt: attempt, Time: f.At, Stderr: p.out.tail.lines(),
	}
	if f.Signal != "" {
		r.ExitCode = -1
	}
	f.Message = p.out.tail.message()
	path := filepath.Join(p.out.dir, errorFile)
	own := readOwn(path)
	if own.text != "" {
		f.Message = firstLines(own.text)
		if p.out.tail.message() == "" { // it said it there and nowhere else
			f.Log = path
		}
	}
	f.Blames = slices.DeleteFunc(own.Blames, func(r int) bool { return r == p.rank })
	r.Message, r.Blames = own.Message, f.Blames
	if r.Message == nil {
		message := map[string]any{"message": firstOf(f.Message, f.Cause), "extraInfo": map[string]any{"timestamp": fmt.Sprint(r.Time.Unix())}}
		r.Message, _ = json.Marshal(message) // maps of strings always marshal
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("recording rank %d's failure: %w", p.rank, err)
	}
	return nil
}

// firstLines is as much of a worker's message as fits into a report; all of it
// stands in error.json.
func firstLines(text string) string {
	const most = 12
	lines := strings.SplitN(strings.TrimRight(text, "\n"), "\n", most+1)
	return strings.Join(lines[:min(most, len(lines))], "\n")
}

// own is what a worker wrote into its error file.
type own struct {
	Message json.RawMessage `json:"message"` // a text, or an object that holds one (torch's)
	Blames  []int           `json:"blames"`  // see status.RecordError
	text    string
}

// readOwn reads the error file; it is empty where the worker left none, or one of
// another shape.
func readOwn(path string) (o own) {
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &o) != nil || o.Message == nil {
		return own{}
	}
	var nested struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(o.Message, &o.text) != nil && json.Unmarshal(o.Message, &nested) == nil {
		o.text = nested.Message
	}
	return o
}

// startCode is the shell's exit status for a program that cannot be started.
func startCode(err error) int {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return 127
	}
	return 126
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
