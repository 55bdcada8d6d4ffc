package hosttest

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv/netns"
)

// A job that loses a worker and starts again from its last checkpoint ends with
// the losses of the undisturbed one.
func TestRestart(t *testing.T) {
	t.Parallel()
	const n = 120
	set := []string{"checkpoint.every=25", "eval.every=10", "eval.steps=1"}
	calm, hosts := t.TempDir(), netns.New(t, netns.Options{})
	start(t, launch{hosts: hosts, args: tiny(t, calm, n, set...)}).succeeds(patience)

	output := t.TempDir()
	args := append([]string{"--max-restarts", "1", "--resume"}, tiny(t, output, n, set...)...)
	j := start(t, launch{hosts: hosts, args: args})
	j.agents[0].await(t, `step +60/`)
	j.signal(3, unix.SIGKILL)
	j.succeeds(patience)
	for _, a := range j.agents {
		if !strings.Contains(a.out.String(), "restart 1 of 1") {
			t.Errorf("%s: no restart:\n%s", a.host.Name, a.out)
		}
	}
	same(t, losses(t, output), losses(t, calm))
}
