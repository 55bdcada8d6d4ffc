package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/doctor"
)

const doctorUsage = `gorun doctor looks for what makes jobs slow, hang or fail, on this host, and says what
to do about it. It changes nothing.

Examples:
  gorun doctor                       this host
  gorun doctor --nproc 8             for a job with 8 workers here
  gorun doctor --json

Each finding is a paragraph, the worst first. The exit status is the number of warnings
and errors, at most 100; 125 where doctor itself fails.
`

// newDoctor is `gorun doctor`. The launcher's flags mean what they mean elsewhere.
func newDoctor(p *parent) *cobra.Command {
	l := &launch{parent: p}
	o := doctorOptions{}
	look := newFlagSet("doctor")
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
	json bool
}

// doctorFlags are those of the launcher's flags that mean something to doctor.
func (l *launch) doctorFlags() (out []flagGroup) {
	keep := map[string][]string{"Job": {"nproc"}}
	for _, g := range l.flagGroups() {
		kept := newFlagSet(g.title)
		for _, name := range keep[g.title] {
			kept.AddFlag(g.flags.Lookup(name))
		}
		if kept.HasFlags() {
			out = append(out, flagGroup{g.title, kept})
		}
	}
	return out
}

// doctorError is what kept doctor from its work: its exit status counts no findings.
type doctorError struct{ error }

func (e doctorError) Unwrap() []error {
	return []error{e.error, &agent.ExitError{Code: doctor.Failed}}
}

func (l *launch) runDoctor(cmd *cobra.Command, o doctorOptions) error {
	if err := l.validate(cmd); err != nil {
		return err
	}
	nproc, err := agent.ParseNProc(l.nproc)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	m, err := doctor.Here(1, nproc, nproc)
	if err != nil {
		return err
	}
	seen := doctor.Examine(ctx, m)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return o.tell(cmd.OutOrStdout(), doctor.NewReport([]string{m.Name}, seen), l.verbose)
}

// tell writes the report. Where there are findings the error holds the exit status that
// counts them, and nothing more is said.
func (o doctorOptions) tell(w io.Writer, r *doctor.Report, verbose bool) error {
	write := func() error { return r.WriteText(w, verbose) }
	if o.json {
		write = func() error { return r.WriteJSON(w) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if n := r.Status(); n > 0 {
		return told{&agent.ExitError{Code: n}}
	}
	return nil
}
