package main

import (
	"crypto/rand"
	"os"
	"strings"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
	"github.com/gorun-dev/gorun/launcher/console"
	"github.com/spf13/cobra"
)

// run checks everything that can be checked before a worker is started, joins
// the other nodes, and runs the agent.
func (l *launch) run(cmd *cobra.Command) error {
	if err := l.validate(cmd); err != nil {
		return err
	}
	nproc, err := agent.ParseNProc(l.nproc)
	if err != nil {
		return err
	}
	spec, err := l.spec(nproc)
	if err != nil {
		return err
	}
	if spec.Token, err = l.token(); err != nil {
		return err
	}
	if spec.Path, err = lookProgram(l.program[0]); err != nil {
		return err
	}
	spec.Argv = l.program
	return l.start(spec, nproc)
}

// start runs the job on one node.
func (l *launch) start(spec *agent.Spec, nproc int) (err error) {
	if l.jobID == "" {
		l.jobID = strings.ToLower(rand.Text()[:8])
	}
	if spec.Token == "" {
		spec.Token = rand.Text()
	}
	solo, err := cluster.NewSolo(l.jobID, spec.Token, nproc, l.masterPort)
	if err != nil {
		return err
	}
	defer solo.Close()
	root, name := l.logDir, l.jobID
	if root == "" {
		root, name = os.TempDir(), "gorun_"+l.jobID
	}
	if spec.LogDir, err = agent.LogFolder(root, name); err != nil {
		return err
	}
	con := console.New(os.Stdout, os.Stderr)
	if l.config == "" && agent.LimitsThreads(nproc) {
		con.Notice("OMP_NUM_THREADS is set to 1 in each worker, for %d share this machine's cores; set it yourself to choose", nproc)
	}
	err = agent.Run(spec, solo, con)
	con.Close()
	if err == nil && l.logDir == "" {
		return os.RemoveAll(spec.LogDir)
	}
	return err
}
