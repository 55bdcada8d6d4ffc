package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/doctor"
)

const doctorUsage = `gorun doctor looks for what makes jobs slow, hang or fail, on one host or on several and
between them, and says what to do about it. It changes nothing.

Examples:
  gorun doctor                       this host
  gorun doctor --nproc 8             for a job with 8 workers here
  gorun doctor --json
  gorun doctor --hosts node1,node2 --nproc 8 --ports 40000-40100

  # two machines, one call on each; the same token on both, in GORUN_TOKEN or --token-file
  gorun doctor --nnodes 2 --node-rank 0 --rdzv 10.0.0.1:29400
  gorun doctor --nnodes 2 --node-rank 1 --rdzv 10.0.0.1:29400

Each finding is a paragraph, the worst first. The exit status is the number of warnings
and errors, at most 100; 125 where doctor itself fails. docs/doctor.md describes the checks.
`

// newDoctor is `gorun doctor`. The launcher's flags mean what they mean elsewhere.
func newDoctor(p *parent) *cobra.Command {
	l := &launch{parent: p}
	o := doctorOptions{}
	look := newFlagSet("doctor")
	look.StringVar(&o.iface, "interface", "", "network `interface` or address that the job will use (comm.interface; default: what routes to the peer)")
	look.StringVar(&o.ports, "ports", "", "`range` of ports that the job will use (comm.ports), as 40000-40100: each is listened on, and probed by all other hosts (default: any port)")
	look.BoolVar(&o.json, "json", false, "one object instead of the text")
	groups := append([]flagGroup{{"What to look at", look}}, l.doctorFlags()...)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "look for what makes jobs slow, hang or fail",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return doctorError{fmt.Errorf("doctor: %q: it takes flags alone", args[0])}
			}
			l.remember(cmd, args)
			err := l.runDoctor(cmd, o)
			if _, hasStatus := errors.AsType[*agent.ExitError](err); err != nil && !hasStatus {
				err = doctorError{err}
			}
			return err
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return doctorError{explainFlag(cmd, err)} })
	return described(cmd, doctorUsage, groups...)
}

// doctorOptions are the flags of doctor alone.
type doctorOptions struct {
	iface, ports string
	json         bool
}

// doctorFlags are those of the launcher's flags that mean something to doctor.
func (l *launch) doctorFlags() (out []flagGroup) {
	keep := map[string][]string{
		"Job":           {"nproc", "job-id"},
		"Several nodes": {"nnodes", "node-rank", "hosts", "rdzv", "master-addr", "master-port", "token-file", "join-timeout"},
		"Output":        {"verbose"},
	}
	for _, g := range l.flagGroups() {
		kept := newFlagSet(g.title)
		for _, name := range keep[g.title] {
			kept.AddFlag(g.flags.Lookup(name))
		}
		if kept.HasFlags() {
			out = append(out, flagGroup{g.title, kept})
		}
	}
	for _, g := range out {
		if f := g.flags.Lookup("join-timeout"); f != nil {
			l.joinTimeout = time.Minute // who calls a doctor waits in front of it
			f.DefValue = l.joinTimeout.String()
		}
		if f := g.flags.Lookup("verbose"); f != nil {
			f.Usage = "show every dial between the hosts"
		}
	}
	return out
}

// doctorError is what kept doctor from its work: its exit status counts no findings.
type doctorError struct{ error }

func (e doctorError) Unwrap() []error {
	return []error{e.error, &agent.ExitError{Code: doctor.Failed}}
}

// doctorGPUs is the command by which doctor starts this binary again to copy between
// GPUs.
const doctorGPUs = "doctor-gpus"

func copyGPUs() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", doctorGPUs)
	cmd.Args[0] = "gorun"
	return cmd
}

func newDoctorGPUs() *cobra.Command {
	return &cobra.Command{
		Use:    doctorGPUs,
		Short:  "copies between GPUs; started by gorun doctor",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.CopyBetweenGPUs(context.Background(), cmd.OutOrStdout())
		},
	}
}

func (l *launch) runDoctor(cmd *cobra.Command, o doctorOptions) error {
	spec, nproc, endpoint, err := l.prepare(cmd, nil)
	if err != nil {
		return err
	}
	first, last, err := comm.ParsePorts(o.ports)
	if err != nil {
		return fmt.Errorf("--ports: %w", err)
	}
	if n := last - first + 1; n > doctor.MaxPorts {
		return fmt.Errorf("--ports %s: %d ports, at most %d are probed", o.ports, n, doctor.MaxPorts)
	}
	world, err := l.worldSize(nproc)
	if err != nil {
		return err
	}
	m, err := doctor.Here(l.nnodes, nproc, world, copyGPUs)
	if err != nil {
		return err
	}
	m.Interface = o.iface
	ctx, stop := interruptible()
	defer stop()
	r, status, err := l.consult(ctx, m, spec, endpoint, first, last)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	if r != nil {
		if err := o.tell(cmd.OutOrStdout(), r, l.verbose); err != nil {
			return err
		}
	}
	if status > 0 {
		return told{&agent.ExitError{Code: status}}
	}
	return nil
}

// tell writes the report.
func (o doctorOptions) tell(w io.Writer, r *doctor.Report, verbose bool) error {
	write := func() error { return r.WriteText(w, verbose) }
	if o.json {
		write = func() error { return r.WriteJSON(w) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
