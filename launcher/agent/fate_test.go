package agent

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"

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

// A worker may end with success before its start is reported, and its peers break the
// attempt meanwhile: it has left on its own, though the agent notices later.
func TestEndedBeforeItsStartIsReported(t *testing.T) {
	p := &process{cmd: &exec.Cmd{Path: "/bin/true", SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.awaitEnd()
	defer p.reap()
	a := &attempt{procs: []*process{p}, pending: 1, stopping: true, stopped: p.ended.Add(-time.Second), stopSignal: unix.SIGTERM}
	a.begin(p)
	p.over = true
	if got := a.how(p); got != cluster.Ended {
		t.Errorf("%s (%s), want %s", got, &p.state, cluster.Ended)
	}
}

// When somebody sets the host's clock, a stopped worker is stopped as long as it is,
// and who ended before the attempt broke did so.
func TestClockJumps(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		// What time.Now returns after the jump: the wall's seconds stand in bits 30 to 62
		// of the first word, the monotonic time in the second.
		jumped := func(t time.Time) time.Time {
			*(*int64)(unsafe.Pointer(&t)) += int64(by/time.Second) << 30
			return t
		}
		start := time.Now()
		var s processState
		for after := time.Duration(0); after <= stoppedTooLong; after += lookEvery {
			now := start.Add(after)
			if after > stoppedTooLong/2 {
				now = jumped(now)
			}
			s.see('T', now)
			if got := now.Sub(s.since); got != after {
				t.Fatalf("%s: stopped for %s, want %s", by, got, after)
			}
		}
		a := &attempt{stopping: true, stopped: jumped(start.Add(time.Second))}
		before := &process{over: true, code: 1, ended: start}
		after := &process{over: true, code: 1, ended: jumped(start.Add(2 * time.Second))}
		if got := [2]cluster.How{a.how(before), a.how(after)}; got != [2]cluster.How{cluster.Failed, cluster.Told} {
			t.Errorf("%s: %v", by, got)
		}
	}
}

// A worker is at its end from its last words on, until it has gone on for a while.
func TestLastWords(t *testing.T) {
	for _, c := range []struct {
		line  string
		after time.Duration // from the words to the break
		dying bool
	}{
		{"Traceback (most recent call last):", time.Second, true},
		{"[rank3]: Traceback (most recent call last):", time.Second, true},
		{"panic: no more", time.Second, true},
		{"Traceback (most recent call last):", -time.Second, false},
		{"Traceback (most recent call last):", recently, false},
		{"step 3 of 7", time.Second, false},
		{"no Traceback (most recent call last):", time.Second, false},
	} {
		var w tail
		w.Write([]byte(c.line + "\nwords\n"))
		if got := w.dying(time.Now().Add(c.after)); got != c.dying {
			t.Errorf("%q, %s before the break: dying is %t", c.line, c.after, got)
		}
	}
}
