// Package agent starts the workers of one node, shows and keeps what they print,
// and ends them all when one fails. Agents of several nodes act as one through a
// Cluster.
//
// Run is the whole of it: for each attempt it starts the workers, waits until all
// are gone, agrees with the other agents on how the attempt ended, and restarts
// or returns.
package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
)

// Cluster is how an agent acts together with those of the other nodes.
type Cluster interface {
	// Layout is who takes part.
	Layout() *cluster.Layout
	// Begin opens an attempt. The channel delivers the first failure of the whole
	// job in this attempt, at most once, where another node reported it.
	Begin(attempt int) (<-chan cluster.Failure, error)
	// Report tells all nodes of a failure here. Only the first of an attempt counts.
	Report(cluster.Failure)
	// Conclude says that this node's workers are gone, and where the attempt broke
	// how each stood and ended. Once those of every node are gone, the channel
	// delivers the failure that is the cause, or nil: the same everywhere.
	Conclude(attempt int, workers []cluster.Failure) <-chan *cluster.Failure
}

// ExitError says how a job ended that did not succeed.
type ExitError struct {
	Code    int // for os.Exit
	Failure cluster.Failure
}

func (e *ExitError) Error() string { return e.Failure.String() }

// Agent runs the workers of one node.
type Agent struct {
	spec          *Spec
	cluster       Cluster
	layout        *cluster.Layout
	console       *console.Console
	guard         *guard
	signals       chan os.Signal
	interrupted   bool             // a SIGINT has come; a second one kills
	asked         *cluster.Failure // the user has asked for the end
	stdinTerminal bool
}

// Run starts the workers that spec names, restarts them after a failure as often
// as it allows, and returns when no process is left. The error is an *ExitError
// where the job failed or the user ended it. Until it returns, SIGINT, SIGTERM,
// SIGQUIT and SIGHUP go to the workers.
func Run(spec *Spec, c Cluster, con *console.Console) (err error) {
	a := &Agent{
		spec: spec, cluster: c, layout: c.Layout(), console: con,
		signals:       make(chan os.Signal, 16),
		stdinTerminal: term.IsTerminal(int(os.Stdin.Fd())),
	}
	handled := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGPIPE}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		handled = append(handled, unix.SIGHUP)
	}
	signal.Notify(a.signals, handled...)
	defer signal.Stop(a.signals)
	if a.guard, err = startGuard(); err != nil {
		return err
	}
	defer func() {
		if closeErr := a.guard.close(); closeErr != nil {
			con.Notice("%v", closeErr)
		}
	}()
	for n := 0; ; n++ {
		failure, err := a.once(n)
		if err != nil {
			return err
		}
		if failure == nil {
			return nil
		}
		if failure.Kind != cluster.WorkerFailed || !failure.Started || n == spec.MaxRestarts {
			return &ExitError{Code: failure.Code, Failure: *failure}
		}
		if a.spec.SharedConsole && a.layout.Self > 0 {
			continue // node 0 says it
		}
		con.Notice("%s", failure)
		if a.asked != nil {
			continue // the next attempt ends before it begins
		}
		con.Notice("all workers are started again (restart %d of %d)", n+1, spec.MaxRestarts)
	}
}

// once is one attempt, from its agreement to begin to its agreed end.
func (a *Agent) once(n int) (*cluster.Failure, error) {
	failures, err := a.cluster.Begin(n)
	if err != nil {
		return nil, err
	}
	if a.asked != nil { // while the attempt before was ending for another reason
		a.cluster.Report(*a.asked)
		return a.conclude(n, nil), nil
	}
	workers, runErr := a.runAttempt(n, failures)
	if runErr != nil {
		// Nothing was started here; the other nodes must not wait for it.
		a.cluster.Report(cluster.Failure{
			Kind: cluster.NodeLost, Node: a.layout.Self, Host: a.host(), Rank: -1, Code: 1,
			Cause: fmt.Sprintf("node %d (host %s) could not start its workers: %v", a.layout.Self, a.host(), runErr),
		})
	}
	failure := a.conclude(n, workers)
	if failure != nil { // perhaps on another node alone
		a.sweep(time.Now().Add(failureGrace))
	}
	return failure, nil
}

// conclude waits for the other nodes' workers. The user may still end the job.
func (a *Agent) conclude(n int, workers []cluster.Failure) *cluster.Failure {
	verdict := a.cluster.Conclude(n, workers)
	for {
		select {
		case f := <-verdict:
			return f
		case s := <-a.signals:
			if s == unix.SIGPIPE {
				continue
			}
			if again := a.userAsks(s.(syscall.Signal)); again {
				return a.asked
			}
			a.cluster.Report(*a.asked)
		case f := <-a.spec.Alarms:
			a.cluster.Report(f)
		}
	}
}

// userStop is the failure that ends a job on the user's wish. Where an attempt ends
// for another reason already, there will be no further one.
func (a *Agent) userStop(s syscall.Signal, cause string) cluster.Failure {
	a.asked = &cluster.Failure{
		Kind: cluster.UserSignal, Node: a.layout.Self, Host: a.host(), Rank: -1,
		Code: 128 + int(s), Cause: cause,
	}
	return *a.asked
}

// userAsks takes a signal of the user's, and says whether it is a second SIGINT.
func (a *Agent) userAsks(s syscall.Signal) (again bool) {
	a.userStop(s, "ended by "+unix.SignalName(s))
	again = s == unix.SIGINT && a.interrupted
	a.interrupted = a.interrupted || s == unix.SIGINT
	return again
}

func (a *Agent) host() string { return a.layout.Nodes[a.layout.Self].Host }

func (a *Agent) verbosef(format string, args ...any) {
	if a.spec.Verbose {
		a.console.Notice(format, args...)
	}
}

// LogFolder makes the folder <root>/<name>_<random> for a job's logs.
func LogFolder(root, name string) (string, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("log folder: %w", err)
	}
	dir, err := os.MkdirTemp(root, name+"_")
	if err != nil {
		return "", fmt.Errorf("log folder: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("log folder: %w", err)
	}
	return filepath.Abs(dir)
}

// ExitCode is the status for os.Exit that goes with an error of Run or of what
// came before it.
func ExitCode(err error) int {
	if e, ok := errors.AsType[*ExitError](err); ok {
		return e.Code
	}
	if err != nil {
		return 1
	}
	return 0
}
