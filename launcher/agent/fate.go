package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

const (
	lookEvery = 500 * time.Millisecond // between looks at the workers' states
	lookAfter = 5 * time.Second        // without a look, the agent itself has slept

	// stoppedTooLong is how long a worker may be stopped before the others are ended,
	// who wait for it. A debugger's hold is another state, and is not bounded.
	stoppedTooLong = 8 * time.Second
)

// processState is the state of a worker in /proc, and since when it is seen there.
type processState struct {
	letter byte // R, S, D, T, t, Z, ...; 0 before the first look
	since  time.Time
	seen   time.Time
}

// stateNames are the states that say something.
var stateNames = map[byte]string{
	'R': "running (R)", 'S': "waiting (S)", 'D': "in an uninterruptible wait (D), as for a disk or a network folder",
	'T': "stopped (T)", 't': "held by a debugger (t)", 'Z': "a zombie (Z): its main thread has ended, others have not",
}

func (s *processState) String() string {
	if name, ok := stateNames[s.letter]; ok {
		return name
	}
	return fmt.Sprintf("in state %q", s.letter)
}

// look takes the worker's state from /proc.
func (s *processState) look(pid int, now time.Time) {
	if letter, ok := readState(pid); ok { // else it ended this moment
		s.see(letter, now)
	}
}

// see notes the state. Times are compared on the monotonic clock, as everywhere: the
// wall clock may jump.
func (s *processState) see(letter byte, now time.Time) {
	if letter != s.letter || now.Sub(s.seen) > lookAfter {
		s.letter, s.since = letter, now
	}
	s.seen = now
}

// readState reads the letter of a process's state.
func readState(pid int) (byte, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// pid (name) state ...; the name may hold anything.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 || end+2 >= len(b) {
		return 0, false
	}
	return b[end+2], true
}

// look notes the states of the workers that run, until the attempt breaks: from
// then on what they do is the agent's doing. It ends the attempt where one of
// several is stopped for too long.
func (t *attempt) look(now time.Time) {
	if t.stopping && now != t.stopped {
		return
	}
	for _, p := range t.procs {
		if !p.started || p.over {
			continue
		}
		p.state.look(p.cmd.Process.Pid, now)
		if p.state.letter == 'T' && now.Sub(p.state.since) >= stoppedTooLong && t.agent.layout.World() > 1 && !t.stopping {
			t.stopFor(&cluster.Failure{
				Kind: cluster.WorkerFailed, Host: t.agent.host(), Rank: p.rank,
				Cause: fmt.Sprintf("%s for %s", &p.state, now.Sub(p.state.since).Round(time.Second)),
			})
			t.agent.cluster.Report(t.describe(p))
			return
		}
	}
}

// describe works out what is to say of a worker as things stand.
func (t *attempt) describe(p *process) cluster.Failure {
	l := t.agent.layout
	f := cluster.Failure{
		Kind: cluster.WorkerFailed, Node: l.Self, Host: t.agent.host(), Rank: p.rank, LocalRank: p.localRank,
		Started: p.startErr == nil,
	}
	if p.over || !f.Started { // else supervise is yet to write how it ended
		f.Code, f.Cause, f.At = p.code, p.cause(), p.ended
		if p.signal != 0 {
			f.Signal = unix.SignalName(p.signal)
		}
	}
	if !f.Started {
		f.How, f.Code, f.At = cluster.Failed, startCode(p.startErr), time.Now()
		return f
	}
	f.PID = p.cmd.Process.Pid
	f.Log = filepath.Join(p.out.dir, "stderr.log")
	f.How = t.how(p)
	if f.How == cluster.Stopped || f.How == cluster.Told {
		f.At = t.stopped
		f.State = p.state.String()
		if strings.IndexByte("DTZ", p.state.letter) >= 0 { // the others are usual, for any time
			f.StateFor = t.stopped.Sub(p.state.since)
		}
	}
	if f.How == cluster.Stopped && !p.over {
		f.Code, f.Cause = 1, fmt.Sprintf("%s for %s", f.State, f.StateFor.Round(time.Second))
	}
	return f
}

// how says how a worker came to its end, or will where it still runs.
func (t *attempt) how(p *process) cluster.How {
	// One that was at its end when the attempt broke, and had not been waited for yet:
	// its last threads may take a while.
	dead := p.over && p.state.letter == 'Z' && (p.signal == 0 || !p.wasSent(p.signal))
	asked := t.stopping && !dead && (!p.over || p.ended.After(t.stopped))
	killed := p.over && p.signal == unix.SIGKILL && !p.wasSent(unix.SIGKILL)
	switch {
	case killed, !asked && p.code != 0:
		return cluster.Failed
	case asked && p.state.letter == 'T':
		return cluster.Stopped
	case asked:
		return cluster.Told
	}
	return cluster.Ended
}

// fates is what is to say of each worker, once all are gone; nothing where the
// attempt did not break here.
func (t *attempt) fates() []cluster.Failure {
	if !t.stopping {
		return nil
	}
	var all []cluster.Failure
	for _, p := range t.procs {
		if p.failure == nil {
			f := t.describe(p)
			p.failure = &f
			if f.How == cluster.Told && p.out.tail.dying(t.stopped) {
				t.overtaken(p)
			}
		}
		all = append(all, *p.failure)
	}
	return all
}

// overtaken makes p a worker that failed by itself: it was saying why when a peer that
// had lost the connection to it was gone already. Our signal may have cut its end short.
func (t *attempt) overtaken(p *process) {
	p.failure.How = cluster.Failed
	if p.signal != 0 && p.wasSent(p.signal) {
		p.failure.Cause, p.failure.Code, p.failure.Signal = "an error", 1, ""
	}
	t.notify(recordFailure(p, p.failure, t.n))
}
