package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/cluster"
)

const (
	failureGrace = 3 * time.Second  // from SIGTERM to SIGKILL when a peer failed
	userGrace    = 30 * time.Second // the same when the user ends the job: workers may save
	drainGrace   = 3 * time.Second  // for helpers that outlive all workers and hold their pipes
)

// attempt is one life of this node's workers. Its loop runs in the agent's
// goroutine and owns every field.
type attempt struct {
	agent    *Agent
	n        int
	procs    []*process
	started  chan *process
	exited   chan *process
	pending  int // workers whose start is not reported yet
	alive    int // workers that run
	stopping bool
	stopped  time.Time // when stopping began

	stopSignal syscall.Signal // what stopping began with
	until      time.Time      // when SIGKILL follows
	deadline   *time.Timer    // the same; nil until stopping
}

// runAttempt starts the workers and returns when all are gone and their output is
// written. Failures go to the cluster. Where the attempt broke, it returns what is
// to say of each worker.
func (a *Agent) runAttempt(n int, failures <-chan cluster.Failure) ([]cluster.Failure, error) {
	t := &attempt{agent: a, n: n}
	if err := t.prepare(); err != nil {
		return nil, err
	}
	for _, p := range t.procs {
		go p.supervise(a.guard, t.started, t.exited)
	}
	t.loop(failures)
	t.drain()
	return t.fates(), nil
}

// prepare makes pipes, log files and commands of all workers, so that what can go
// wrong goes wrong before any of them runs.
func (t *attempt) prepare() error {
	l := t.agent.layout
	nproc := l.Nodes[l.Self].NProc
	t.started, t.exited = make(chan *process, nproc), make(chan *process, nproc)
	for i := range nproc {
		p, err := t.agent.newProcess(t.n, i)
		if err != nil {
			for _, p := range t.procs {
				p.out.closeChildEnds()
				p.out.abandon()
			}
			return fmt.Errorf("local rank %d: %w", i, err)
		}
		t.procs = append(t.procs, p)
	}
	t.pending = nproc
	return nil
}

func (a *Agent) newProcess(n, localRank int) (*process, error) {
	rank := a.layout.Base(a.layout.Self) + localRank
	prefix, notes := "", ""
	if a.layout.Nodes[a.layout.Self].NProc > 1 || a.spec.SharedConsole {
		prefix = fmt.Sprintf("[rank%d] ", rank)
	}
	if rank > 0 { // rank 0's status speaks for the job
		notes = fmt.Sprintf("[rank%d] ", rank)
	}
	dir := filepath.Join(a.spec.LogDir, "attempt_"+strconv.Itoa(n), strconv.Itoa(localRank))
	out, err := newOutput(dir, prefix, notes, a.spec.shown(localRank), a.console)
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path:        a.spec.Path,
		Args:        a.spec.Argv,
		Env:         slices.Concat(os.Environ(), environment(a.spec, a.layout, n, localRank, dir), a.spec.Env, []string{markVariable + "=" + a.guard.mark}),
		Stdout:      out.child[0],
		Stderr:      out.child[1],
		ExtraFiles:  out.child[2:],
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	}
	if localRank == 0 && !a.stdinTerminal {
		// A terminal would stop it: its group is not the one in the foreground.
		cmd.Stdin = os.Stdin
	}
	return &process{localRank: localRank, rank: rank, cmd: cmd, out: out}, nil
}

// loop reacts to what happens until no worker is left.
func (t *attempt) loop(failures <-chan cluster.Failure) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for t.pending > 0 || t.alive > 0 {
		var timeout <-chan time.Time
		if t.deadline != nil {
			timeout = t.deadline.C
		}
		select {
		case p := <-t.started:
			t.begin(p)
		case p := <-t.exited:
			t.alive--
			p.over = true
			t.agent.verbosef("rank %d (pid %d): %s", p.rank, p.cmd.Process.Pid, p.cause())
			// One that a signal of ours ended has not failed.
			if p.code != 0 && !(p.signal != 0 && p.wasSent(p.signal)) {
				t.fail(p)
			}
		case now := <-look.C:
			t.look(now)
		case f := <-failures:
			failures = nil
			if f.Kind == cluster.UserSignal {
				t.stop(unix.SIGTERM, userGrace)
			} else {
				t.stopFor(&f)
			}
		case f := <-t.agent.spec.Alarms:
			t.agent.cluster.Report(f)
			t.stopFor(&f)
		case s := <-t.agent.signals:
			t.userSignal(s.(syscall.Signal))
		case err := <-t.agent.console.Broken():
			t.agent.cluster.Report(t.agent.userStop(unix.SIGPIPE, fmt.Sprintf("the console is gone: %v", err)))
			t.stop(unix.SIGTERM, userGrace)
		case <-timeout:
			t.signalAll(unix.SIGKILL)
		}
	}
}

// begin counts a worker among those that run, or fails where it could not be started.
func (t *attempt) begin(p *process) {
	t.pending--
	if p.startErr != nil {
		t.fail(p)
		return
	}
	t.alive++
	p.started = true
	t.notify(p.guardErr)
	if t.stopping {
		// It may have ended on its own while its start was being reported: what it
		// did is looked at before the signal.
		p.state.look(p.cmd.Process.Pid, t.stopped)
		t.signal(p, t.stopSignal)
	}
}

// fail records a worker's own failure and ends its peers.
func (t *attempt) fail(p *process) {
	f := t.describe(p)
	p.failure = &f
	t.notify(recordFailure(p, p.failure, t.n))
	t.agent.cluster.Report(*p.failure)
	t.stopFor(p.failure)
}

// stopFor ends the workers because of a failure. They are told of it before, so that
// they do not take the signal for the user's.
func (t *attempt) stopFor(f *cluster.Failure) {
	if t.stopping {
		return
	}
	for _, p := range t.procs {
		if err := p.out.tell(f.Brief()); err != nil {
			t.notify(fmt.Errorf("telling rank %d why it ends: %w", p.rank, err))
		}
	}
	t.stop(unix.SIGTERM, failureGrace)
}

// userSignal passes a signal of the user's on. The workers may take their time to
// save, but a second SIGINT ends them at once.
func (t *attempt) userSignal(s syscall.Signal) {
	if s == unix.SIGPIPE {
		return // the write that failed is reported by the console
	}
	if again := t.agent.userAsks(s); again {
		t.agent.console.Notice("second SIGINT: the workers are killed")
		t.signalAll(unix.SIGKILL)
		return
	}
	t.agent.cluster.Report(*t.agent.asked)
	if t.stopping {
		t.signalAll(s)
		return
	}
	t.stop(s, userGrace)
}

// stop asks all workers to end; after grace they are killed. The first call
// counts: a worker that fails while others save must not hurry them.
func (t *attempt) stop(sig syscall.Signal, grace time.Duration) {
	if t.stopping {
		return
	}
	t.stopping, t.stopSignal, t.stopped = true, sig, time.Now()
	t.look(t.stopped) // the signals wake those that are stopped
	t.until, t.deadline = t.stopped.Add(grace), time.NewTimer(grace)
	t.signalAll(sig)
}

func (t *attempt) signalAll(sig syscall.Signal) {
	for _, p := range t.procs {
		t.signal(p, sig)
	}
}

// signal sends sig to a worker's group, its helpers too where it is dead itself,
// and wakes the stopped ones to receive it.
func (t *attempt) signal(p *process, sig syscall.Signal) {
	if !p.started {
		return
	}
	p.sent = append(p.sent, sig)
	for _, s := range []syscall.Signal{sig, unix.SIGCONT} {
		t.notify(p.kill(s))
	}
}

// notify shows an error that the job survives.
func (t *attempt) notify(err error) {
	if err != nil {
		t.agent.console.Notice("%v", err)
	}
}

// drain waits until the output of all workers is written, ends the helpers that
// outlive them, and reaps. Where the attempt broke, helpers that have left their
// worker's group are ended too.
func (t *attempt) drain() {
	grace := drainGrace
	if t.stopping {
		t.deadline.Stop()
		grace = min(grace, time.Until(t.until))
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, p := range t.procs {
		if !p.out.wait(ctx) {
			t.agent.console.Notice("processes that rank %d started have outlived it: they are killed", p.rank)
		}
		if p.started {
			t.notify(t.agent.guard.forget(p))
			p.reap()
		}
	}
	if t.stopping {
		t.agent.sweep(t.until)
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, p := range t.procs {
		if !p.out.wait(ctx) {
			t.agent.console.Notice("a process outside rank %d's group still holds its output: what it writes from now on is lost", p.rank)
			p.out.abandon()
		}
	}
}
