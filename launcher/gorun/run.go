package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
)

// run checks everything that can be checked before a worker is started, joins
// the other nodes, and runs the agent.
func (l *launch) run(cmd *cobra.Command) error {
	var t *training
	var err error
	if l.config != "" {
		if t, err = l.loadTraining(); err != nil {
			return err
		}
		l.takeGPUs(cmd, t)
	}
	spec, nproc, endpoint, err := l.prepare(cmd, t)
	if err != nil {
		return err
	}
	if t != nil {
		spec.Path = "/proc/self/exe" // this binary, even where its file is replaced meanwhile
	} else {
		if spec.Path, err = lookProgram(l.program[0]); err != nil {
			return err
		}
		spec.Argv = l.program
	}
	if l.parent == nil {
		for _, line := range l.torchrun.ignored() {
			fmt.Fprintln(cmd.ErrOrStderr(), "gorun:", line)
		}
	}
	if l.dryRun {
		return l.describe(cmd.OutOrStdout(), spec, t, nproc, endpoint)
	}
	return l.start(spec, t, nproc, endpoint)
}

// takeGPUs makes a training job without --nproc use every GPU of each host, where
// this one has any that can run it.
func (l *launch) takeGPUs(cmd *cobra.Command, t *training) {
	if !cmd.Flags().Changed("nproc") && agent.GPUCount() > 0 && l.trainer.wantsGPUs(t.cfg) {
		l.nproc, l.commonNProc = "gpu", "gpu"
	}
}

// prepare checks the flags and works out what every kind of job needs: how its
// workers are started, how many here, and where several nodes meet.
func (l *launch) prepare(cmd *cobra.Command, t *training) (spec *agent.Spec, nproc int, endpoint string, err error) {
	if err := l.takeHosts(cmd, t); err != nil {
		return nil, 0, "", err
	}
	if err := l.validate(cmd); err != nil {
		return nil, 0, "", err
	}
	if nproc, err = agent.ParseNProc(l.nproc); err != nil {
		return nil, 0, "", err
	}
	if spec, err = l.spec(nproc); err != nil {
		return nil, 0, "", err
	}
	if spec.Token, err = l.token(); err != nil {
		return nil, 0, "", err
	}
	if l.nnodes > 1 {
		if err := needToken(spec.Token); err != nil && !l.dryRun && l.hosts == nil {
			return nil, 0, "", err
		}
		if endpoint, err = l.meet(os.Getenv); err != nil {
			return nil, 0, "", err
		}
	}
	return spec, nproc, endpoint, nil
}

// start runs the job on this node, from the lock of its output folder to the end
// of its last worker.
func (l *launch) start(spec *agent.Spec, t *training, nproc int, endpoint string) error {
	random := strings.ToLower(rand.Text()[:8])
	if t != nil && l.nodeRank == 0 {
		name := l.jobID
		if name == "" {
			name = random
		}
		lock, err := lockOutput(t.cfg.Output, name)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	con := console.New(os.Stdout, os.Stderr)
	defer con.Close()
	node, err := l.join(spec, t, nproc, endpoint, random, con)
	if err != nil {
		return err
	}
	defer node.Close()
	temporary, err := l.prepareLogs(spec, t, node.Layout().Job)
	if err != nil {
		return err
	}
	if spec.Verbose {
		con.Notice("job %s: logs in %s", node.Layout().Job, spec.LogDir)
	}
	if t == nil && l.parent == nil && agent.LimitsThreads(nproc) {
		con.Notice("OMP_NUM_THREADS=1 in each of the %d workers (set it to override)", nproc)
	}
	if err := agent.Run(spec, node, con); err != nil {
		return err
	}
	if temporary {
		return os.RemoveAll(spec.LogDir)
	}
	return nil
}

// node is a job's membership, on one node or several.
type node interface {
	agent.Cluster
	Close() error
}

func (l *launch) join(spec *agent.Spec, t *training, nproc int, endpoint, random string, con *console.Console) (_ node, err error) {
	if l.nnodes == 1 {
		if l.jobID != "" {
			random = l.jobID
		}
		if spec.Token == "" {
			spec.Token = rand.Text()
		}
		return cluster.NewSolo(random, spec.Token, nproc, l.masterPort)
	}
	if spec.Token == "" {
		spec.Token = rand.Text() // --hosts passes it on
	}
	o := cluster.Options{
		Job: l.jobID, RandomJob: random, Token: spec.Token,
		NNodes: l.nnodes, NodeRank: l.nodeRank, NProc: nproc, Endpoint: endpoint,
		MasterAddr: l.masterAddr, MasterPort: l.masterPort,
		MaxRestarts: l.maxRestarts, Version: version(), Timeout: l.joinTimeout,
		Say: func(string, ...any) {}, // gorun itself starts those whom it waits for
	}
	if t != nil {
		o.Settings = t.cfg.Settings()
	}
	ctx, stop := interruptible()
	defer stop()
	var n node
	switch {
	case l.parent != nil:
		n, err = l.joinHosted(ctx, spec, o)
	case l.hosts != nil:
		n, err = l.joinHosts(ctx, spec, o, con)
	default:
		n, err = l.joinOthers(ctx, o, con)
	}
	if ended, ok := errors.AsType[*agent.ExitError](context.Cause(ctx)); ok && err != nil {
		return nil, ended
	}
	return n, err
}

// joinOthers joins nodes that the user has started, or is to start.
func (l *launch) joinOthers(ctx context.Context, o cluster.Options, con *console.Console) (node, error) {
	o.Say = con.Notice
	m, err := cluster.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	if layout := m.Layout(); layout.Self > 0 {
		con.Notice("joined %s as node %d of %d; node 0 (host %s) has the console", o.Endpoint, layout.Self, l.nnodes, layout.Nodes[0].Host)
	}
	return m, nil
}

// joinHosts starts the other nodes and waits for them. One that ends instead of
// joining is why it fails.
func (l *launch) joinHosts(ctx context.Context, spec *agent.Spec, o cluster.Options, con *console.Console) (node, error) {
	ctx, failed := context.WithCancelCause(ctx)
	r, err := l.startRemotes(spec.Token, o.Endpoint, con, failed)
	if err != nil {
		return nil, err
	}
	m, err := cluster.Join(ctx, o)
	if err != nil {
		r.end()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
			return nil, cause
		}
		return nil, err
	}
	r.joined()
	spec.SharedConsole, spec.Alarms = true, r.alarms
	return &hostedNode{m, r}, nil
}

// joinHosted joins for as long as node 0 is there.
func (l *launch) joinHosted(ctx context.Context, spec *agent.Spec, o cluster.Options) (node, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go l.parent.routineCancel(ctx, cancel)
	m, err := cluster.Join(ctx, o)
	if err != nil {
		return nil, err
	}
	layout := m.Layout()
	spec.SharedConsole, spec.Alarms = true, l.parent.alarms(layout.Self, layout.Nodes[layout.Self].Host)
	return m, nil
}

// prepareLogs makes the job's log folder, and for a training writes the resolved
// configuration there, which the workers read, and into the output folder. It
// says whether the folder is one to remove after success.
func (l *launch) prepareLogs(spec *agent.Spec, t *training, job string) (temporary bool, err error) {
	root, name := l.logDir, job
	switch {
	case root != "":
	case t != nil:
		root = filepath.Join(t.cfg.Output, "logs")
	default:
		root, name, temporary = os.TempDir(), "gorun_"+job, true
	}
	if spec.LogDir, err = agent.LogFolder(root, name); err != nil || t == nil {
		return temporary, err
	}
	path, err := t.write(spec.LogDir, "config.yaml")
	if err != nil {
		return false, err
	}
	if l.nodeRank == 0 {
		if _, err := t.write(t.cfg.Output, "config.yaml"); err != nil {
			return false, err
		}
	}
	spec.Argv = []string{"gorun", "worker", path}
	return false, nil
}
