// Command gorun starts the workers of a distributed training job: a built-in
// model that a YAML file describes, or any program.
package main

import (
	"fmt"
	"os"

	"github.com/gorun-dev/gorun/launcher/agent"
)

func main() {
	err := newRoot().Execute()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gorun:", err)
	}
	os.Exit(agent.ExitCode(err))
}
