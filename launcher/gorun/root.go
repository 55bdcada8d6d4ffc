package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const usage = `gorun starts the workers of a distributed training job, on one machine or many.

Examples:
  gorun train.yaml                            train the model that the file describes
  gorun --nproc 2 train.yaml                  the same in two processes
  gorun --nproc 2 --resume train.yaml         go on from the last checkpoint
  gorun --nproc 2 --set train.lr=1e-4 train.yaml
  gorun --nproc 8 -- python3 train.py --epochs 3
  gorun --nproc auto -- ./my-trainer          one worker a GPU, or a core
  gorun --nproc 2 --dry-run -- ./my-trainer   say what would be started

  # two machines; the same token on both, in GORUN_TOKEN or --token-file
  gorun --nnodes 2 --node-rank 0 --rdzv 10.0.0.1:29400 --nproc 8 train.yaml
  gorun --nnodes 2 --node-rank 1 --rdzv 10.0.0.1:29400 --nproc 8 train.yaml

  # the same in one call, on the first of the two; it reaches the other by ssh
  gorun --hosts node1,node2 --nproc 8 train.yaml

Usage:
  gorun [flags] train.yaml
  gorun [flags] -- program [argument ...]
`

// aliases are torchrun's names for our flags. Underscores stand for dashes in all.
var aliases = map[string]string{
	"nproc-per-node": "nproc",
	"rdzv-endpoint":  "rdzv",
	"rdzv-id":        "job-id",
	"host":           "hosts", // mpirun's
}

// flagGroup is a section of the help.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

func newRoot(tr trainer) *cobra.Command { return newCommand(tr, nil) }

// newCommand is gorun, started by the user, or by node 0 where there is a parent.
func newCommand(tr trainer, p *parent) *cobra.Command {
	l := &launch{trainer: tr, parent: p}
	groups := l.flagGroups()
	root := &cobra.Command{
		Use:           "gorun",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("nothing to start: give a train.yaml, or `--` and a program; gorun --help has examples")
			}
			if err := l.choose(args, cmd.ArgsLenAtDash()); err != nil {
				return err
			}
			l.remember(cmd, args)
			return l.run(cmd)
		},
	}
	for _, g := range groups {
		root.Flags().AddFlagSet(g.flags)
	}
	root.Flags().AddFlagSet(l.torchrun.flags())
	root.SetGlobalNormalizationFunc(normalize)
	root.SetFlagErrorFunc(explainFlag)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(newHelp())
	root.Version = version()
	root.SetVersionTemplate(describeVersion() + "\n")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if cmd != root {
			fmt.Fprint(cmd.OutOrStdout(), cmd.Long, "\n\n", cmd.UsageString())
			return
		}
		fmt.Fprint(cmd.OutOrStdout(), usage, commands)
		writeFlags(cmd.OutOrStdout(), groups)
		fmt.Fprint(cmd.OutOrStdout(), torchrunNote)
	})
	root.AddCommand(newWorker(tr), newBench(p), newBenchWorker(), newDoctor(p), newDoctorGPUs(), newExport(), newMerge(), newSample(), newTokenize(), newTopo(), newVersion())
	if p == nil {
		root.AddCommand(newHostAgent(tr))
	}
	return root
}

func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	if real, ok := aliases[name]; ok {
		name = real
	}
	return pflag.NormalizedName(name)
}

// choose decides between the two forms of the command line.
func (l *launch) choose(args []string, dash int) error {
	switch {
	case dash < 0 && len(args) == 1:
		l.config = args[0]
	case dash < 0:
		return fmt.Errorf("%d arguments (%s), want one train.yaml; a program goes behind `--`: gorun [flags] -- %s", len(args), strings.Join(args, " "), strings.Join(args, " "))
	case dash > 0:
		return fmt.Errorf("both %s and a program (%s) are given: want a train.yaml or `--` and a program", args[0], args[dash])
	default:
		l.program = args
		return l.refuseTrainingFlags()
	}
	info, err := os.Stat(l.config)
	switch ext := filepath.Ext(l.config); {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a folder, want a train.yaml", l.config)
	case ext == ".yaml" || ext == ".yml" || ext == ".json":
		return err // names the path
	case err == nil:
		return fmt.Errorf("%s does not end in .yaml: to start it as a program write gorun [flags] -- %s", l.config, l.config)
	default:
		return fmt.Errorf("%s: neither a command of gorun nor a train.yaml that exists; a program goes behind `--`", l.config)
	}
}
