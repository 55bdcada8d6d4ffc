package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/vec"
)

const commands = `
Commands:
  gorun bench COLLECTIVE    measure a collective between workers
  gorun doctor              look for what makes jobs slow, hang or fail, on one host or several
  gorun export CHECKPOINT   make a model folder in Hugging Face's format of a checkpoint
  gorun merge               add adapters to a model's weights
  gorun sample              let a model write
  gorun tokenize            turn text into token ids, or back
  gorun topo                show how GPUs, network cards and CPUs are connected
  gorun help [COMMAND]      this text, or that of a command
  gorun version             version, Go, system and instruction set; --version does the same
`

const torchrunNote = `
torchrun's spellings are understood too: --nproc-per-node, --rdzv-endpoint, --rdzv-id, --role, and _ for -.
--standalone, --no-python and --rdzv-backend c10d or static change nothing; --rdzv-conf, --start-method,
--monitor-interval and --local-addr are ignored, and gorun says so.
`

// writeFlags writes the sections of a help text.
func writeFlags(w io.Writer, groups []flagGroup) {
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(100))
	}
}

// described gives a command its flags and its help.
func described(cmd *cobra.Command, usage string, groups ...flagGroup) *cobra.Command {
	for _, g := range groups {
		cmd.Flags().AddFlagSet(g.flags)
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprint(cmd.OutOrStdout(), usage)
		writeFlags(cmd.OutOrStdout(), groups)
	})
	return cmd
}

// newHelp is `gorun help`, with or without a command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "how to use gorun, or one of its commands",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("help: there is no command %s; gorun help lists them", strings.Join(args, " "))
			}
			return about.Help()
		},
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "version, Go, system and instruction set",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), describeVersion()) },
	}
}

// version is what every node must run the same of.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

func describeVersion() string {
	return fmt.Sprintf("gorun %s, %s, %s/%s, vector instructions: %s", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, vec.Path())
}

// explainFlag makes the error of a flag one that says what to write.
func explainFlag(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[errPythonModule](err); ok {
		return e
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if _, ok := e.GetFlag().Value.(*nodeCount); ok {
			return fmt.Errorf("--%s %s: %w", e.GetFlag().Name, e.GetValue(), e.Unwrap())
		}
	}
	e, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || e.GetSpecifiedShortnames() != "" {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		known = append(known, f.Name)
	})
	for name := range aliases {
		if cmd.Flags().Lookup(name) != nil {
			known = append(known, name)
		}
	}
	if near := config.Nearest(strings.ReplaceAll(e.GetSpecifiedName(), "_", "-"), known); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	if cmd.HasParent() {
		return fmt.Errorf("%w; gorun help %s lists those that there are", err, cmd.Name())
	}
	return fmt.Errorf("%w; what is for a program goes behind `--`, and gorun --help lists gorun's own", err)
}
