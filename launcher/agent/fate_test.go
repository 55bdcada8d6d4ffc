package agent

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

// How a worker ended is told from when it did, what it was doing when the attempt
// broke, and what it was sent.
func TestHow(t *testing.T) {
	broke := time.Now()
	const s = time.Second
	for _, c := range []struct {
		name   string
		ended  time.Duration // after the attempt broke
		code   int
		signal syscall.Signal
		state  byte
		since  time.Duration
		want   cluster.How
	}{
		{"an error before", -s, 3, 0, 'S', -9 * s, cluster.Failed},
		{"success before", -s, 0, 0, 'S', -9 * s, cluster.Ended},
		{"an error when told", s, 3, 0, 'S', -9 * s, cluster.Told},
		{"ended by our signal", s, 143, unix.SIGTERM, 'S', -9 * s, cluster.Told},
		{"stopped", s, 143, unix.SIGTERM, 'T', -s, cluster.Stopped},
		{"killed by somebody", s, 137, unix.SIGKILL, 'S', -9 * s, cluster.Failed},
		{"at its end, with an error", s, 1, 0, 'Z', 0, cluster.Failed},
		{"at its end for a while, with an error", s, 1, 0, 'Z', -s, cluster.Failed},
		{"at its end for a while, with success", s, 0, 0, 'Z', -s, cluster.Ended},
		{"without its first thread, ended by our signal", s, 143, unix.SIGTERM, 'Z', -s, cluster.Told},
	} {
		a := &attempt{stopping: true, stopped: broke}
		p := &process{over: true, ended: broke.Add(c.ended), code: c.code, signal: c.signal, sent: []syscall.Signal{unix.SIGTERM},
			state: processState{letter: c.state, since: broke.Add(c.since)}}
		if got := a.how(p); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
