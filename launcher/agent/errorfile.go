package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	Stderr    []string        `json:"stderr"` // the last 50 lines
}

// recordFailure writes error.json for a worker that ended by itself with an error
// and returns what the rest of the job is told. Its output is drained.
func recordFailure(p *process, l *cluster.Layout, attempt int) (cluster.Failure, error) {
	node := l.Nodes[l.Self]
	f := cluster.Failure{
		Kind: cluster.WorkerFailed, Node: l.Self, Host: node.Host,
		Rank: p.rank, LocalRank: p.localRank,
		Code: p.code, Cause: p.cause(), Started: p.startErr == nil,
	}
	r := errorRecord{
		Cause: f.Cause, ExitCode: p.code, Rank: p.rank, LocalRank: p.localRank, Node: l.Self,
		Host: node.Host, Attempt: attempt, Time: p.ended, Stderr: p.out.tail.lines(),
	}
	if f.Started {
		f.PID = p.cmd.Process.Pid
		f.Message = p.out.tail.message()
		f.Log = filepath.Join(p.out.dir, "stderr.log")
	} else {
		f.Code, r.ExitCode, r.Time = startCode(p.startErr), startCode(p.startErr), time.Now()
	}
	r.PID = f.PID
	if p.signal != 0 {
		r.ExitCode, r.Signal = -1, unix.SignalName(p.signal)
	}
	path := filepath.Join(p.out.dir, errorFile)
	own, text := ownMessage(path)
	if own == nil {
		message := map[string]any{"message": firstOf(f.Message, f.Cause), "extraInfo": map[string]any{"timestamp": fmt.Sprint(r.Time.Unix())}}
		own, _ = json.Marshal(message) // maps of strings always marshal
	} else if text != "" {
		f.Message = text
	}
	r.Message = own
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if err != nil {
		return f, fmt.Errorf("recording rank %d's failure: %w", p.rank, err)
	}
	return f, nil
}

// ownMessage returns the message that the worker itself left in its error file,
// as it stands and as text; nil where it left none.
func ownMessage(path string) (json.RawMessage, string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, ""
	}
	var file struct {
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal(b, &file) != nil || file.Message == nil {
		return nil, ""
	}
	var text string
	var nested struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(file.Message, &text) != nil && json.Unmarshal(file.Message, &nested) == nil {
		text = nested.Message
	}
	return file.Message, text
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
