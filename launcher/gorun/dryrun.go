package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gorun-dev/gorun/launcher/agent"
)

// describe says what the job would start, for --dry-run. A plan that this host cannot
// run is written too, and its error returned.
func (l *launch) describe(w io.Writer, spec *agent.Spec, t *training, nproc int, endpoint string) error {
	world, err := l.worldSize(nproc)
	if err != nil {
		return err
	}
	var b strings.Builder
	var refusal error
	switch {
	case len(l.hosts) > 1:
		fmt.Fprintf(&b, "%d nodes, %d workers in all; this one starts the others by ssh\n", l.nnodes, world)
		for i, h := range l.hosts {
			fmt.Fprintf(&b, "node %d on host %s: gorun %q\n", i, h.login, l.argumentsFor(i, endpoint))
		}
	case l.nnodes == 1:
		fmt.Fprintf(&b, "1 node, %d workers (ranks 0 to %d)\n", nproc, nproc-1)
	default:
		fmt.Fprintf(&b, "node %d of %d, %d workers here; if the others start as many, ranks %d to %d of %d\n",
			l.nodeRank, l.nnodes, nproc, l.nodeRank*nproc, (l.nodeRank+1)*nproc-1, world)
		fmt.Fprintf(&b, "the nodes meet at %s\n", endpoint)
	}
	fmt.Fprintf(&b, "restarts after a failure: %d\n", l.maxRestarts)
	if t == nil {
		fmt.Fprintf(&b, "program: %s\narguments: %q\n", spec.Path, spec.Argv[1:])
	} else {
		fmt.Fprintf(&b, "output: %s\n\n%s", t.cfg.Output, t.resolved)
		var plan string
		if plan, refusal = l.trainer.plan(t.cfg, world, nproc); plan == "" {
			return refusal
		}
		fmt.Fprintf(&b, "\n%s", plan)
	}
	_, err = io.WriteString(w, b.String())
	return errors.Join(err, refusal)
}
