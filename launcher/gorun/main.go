// Command gorun starts the workers of a distributed training job: a built-in
// model that a YAML file describes, or any program.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/gorun-dev/gorun/launcher/agent"
)

func main() {
	if os.Args[0] == agent.GuardName {
		agent.Guard(os.Stdin)
		return
	}
	os.Exit(run(builtin))
}

// told is an error of which another process, a worker's agent or node 0, says all
// there is to say.
type told struct{ error }

func (t told) Unwrap() error { return t.error }

// run is the command with the given built-in training; it returns the exit status.
func run(tr trainer) int {
	err := newRoot(tr).Execute()
	if _, known := errors.AsType[told](err); err != nil && !known {
		fmt.Fprintln(os.Stderr, "gorun:", err)
	}
	return agent.ExitCode(err)
}
