package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
)

// hostAgent is the command that node 0 starts on another host.
const hostAgent = "host-agent"

// parent is node 0, as a node that it started by ssh knows it.
type parent struct {
	gone chan struct{} // closed when it is
}

// newHostAgent is gorun on a host that node 0 has reached by ssh. Its stdin brings
// the order, whose environment and token so stay off every command line, and then
// tells by its end that node 0 is gone.
func newHostAgent(tr trainer) *cobra.Command {
	return &cobra.Command{
		Use:    hostAgent,
		Short:  "one node of a job with --hosts; started by gorun itself",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			stdin := bufio.NewReader(os.Stdin)
			line, err := stdin.ReadBytes('\n')
			var o order
			if err != nil || json.Unmarshal(line, &o) != nil || len(o.Args) == 0 {
				return fmt.Errorf("%s is started by gorun itself: write gorun --hosts a,b", hostAgent)
			}
			if err := o.obey(); err != nil {
				return err
			}
			p := &parent{gone: make(chan struct{})}
			lifeline, err := detachStdin()
			if err != nil {
				return err
			}
			go p.routineWatch(lifeline)
			root := newCommand(tr, p)
			root.SetArgs(o.Args)
			err = root.Execute()
			if _, agreed := errors.AsType[*agent.ExitError](err); agreed {
				return told{err}
			}
			return err
		},
	}
}

// obey puts this process where node 0 is, with its environment.
func (o *order) obey() error {
	for _, v := range append(o.Env, "GORUN_TOKEN="+o.Token) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment variable %q: %w", name, err)
		}
	}
	if err := os.Chdir(o.Dir); err != nil {
		return fmt.Errorf("the working folder of node 0 is not here too: %w", err)
	}
	return nil
}

// detachStdin returns this process's stdin, which is empty from then on, so that no
// worker takes what is node 0's.
func detachStdin() (*os.File, error) {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	return os.NewFile(uintptr(fd), "node 0"), nil
}

// routineWatch waits for the end of node 0. One, started by the command; it ends
// with node 0, or with this process.
func (p *parent) routineWatch(lifeline *os.File) {
	io.Copy(io.Discard, lifeline)
	close(p.gone)
}

// routineCancel ends a join with node 0. One, started by joinHosted, which ends it.
func (p *parent) routineCancel(ctx context.Context, cancel context.CancelFunc) {
	select {
	case <-p.gone:
		cancel()
	case <-ctx.Done():
	}
}

// alarms tells the agent of node 0's end.
func (p *parent) alarms(self int, host string) <-chan cluster.Failure {
	alarms := make(chan cluster.Failure, 1)
	go p.routineAlarm(alarms, cluster.Failure{
		Kind: cluster.NodeLost, Node: self, Host: host, Rank: -1, Code: 1, Started: true,
		Cause: fmt.Sprintf("node %d (host %s) is cut off: the ssh by which node 0 holds it has ended", self, host),
	})
	return alarms
}

// routineAlarm passes node 0's end on. One, started by alarms; it ends with node 0,
// or with this process.
func (p *parent) routineAlarm(alarms chan<- cluster.Failure, f cluster.Failure) {
	<-p.gone
	alarms <- f
}
