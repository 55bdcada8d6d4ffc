package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gorun-dev/gorun/launcher/train"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const exportUsage = `gorun export makes a model folder in Hugging Face's format of a checkpoint, which
from_pretrained and vLLM load as it is: weights, config.json, and the tokenizer and other
small files of the model's own folder. Of a run that trained adapters (lora.r) it makes a
folder of adapters in PEFT's format, or with --merge of the model with the adapters in it.

A job does this by itself at its end (checkpoint.export).

Examples:
  gorun export runs/quickstart --output my-model
  gorun export runs/sft/checkpoints/step-00000100 --output my-model --dtype bf16
  gorun export runs/lora --output my-model --merge
`

const mergeUsage = `gorun merge adds adapters in PEFT's format to the weights of the model that they are for,
and writes the result as a model folder in Hugging Face's format.

Example:
  gorun merge --model Qwen2.5-0.5B-Instruct --adapter runs/lora/export --output my-model
`

// folderFlags are those of every command that writes a model's folder.
type folderFlags struct {
	output, dtype string
	replace       bool
}

func (f *folderFlags) set(name string) flagGroup {
	flags := newFlagSet(name)
	flags.StringVar(&f.output, "output", "", "`folder` to write")
	flags.StringVar(&f.dtype, "dtype", "", "`type` of the weights: fp32, bf16 or fp16 (default: what the model's config.json says, else fp32)")
	flags.BoolVar(&f.replace, "replace", false, "replace the folder if it exists and holds a model or adapters")
	return flagGroup{"Flags", flags}
}

func (f *folderFlags) check() (dtype.DType, error) {
	if f.output == "" {
		return dtype.Invalid, errors.New("--output is missing: the folder to write")
	}
	dt, ok := map[string]dtype.DType{"": dtype.Invalid, "fp32": dtype.F32, "bf16": dtype.BF16, "fp16": dtype.F16}[f.dtype]
	if !ok {
		return dt, fmt.Errorf("--dtype %s: want fp32, bf16 or fp16", f.dtype)
	}
	return dt, nil
}

// interruptible is the context of a command that writes a folder: the first signal ends
// it when the next piece is due, so that what is written so far is removed; a second one
// at once.
func (*folderFlags) interruptible() (ctx context.Context, stop func()) {
	ctx, stop = interruptible()
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func newExport() *cobra.Command {
	var f folderFlags
	group := f.set("export")
	merge := group.flags.Bool("merge", false, "of a checkpoint of adapters: write the model with them in its weights")
	model := group.flags.String("model", "", "`folder` of the model that the job began with, where it is no longer at its model.path")
	cmd := &cobra.Command{
		Use:   "export CHECKPOINT --output DIR",
		Short: "make a model folder of a checkpoint",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("export: %d checkpoints are given, want one: a checkpoint's folder, or the output folder of a job", len(args))
			}
			dt, err := f.check()
			if err != nil {
				return fmt.Errorf("export: %w", err)
			}
			ctx, stop := f.interruptible()
			defer stop()
			about, err := train.Export{From: args[0], Model: *model, Output: f.output, Replace: f.replace, DType: dt, Merge: *merge}.Run(ctx)
			if err != nil {
				return fmt.Errorf("export: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", f.output, about)
			return nil
		},
	}
	return described(cmd, exportUsage, group)
}

func newMerge() *cobra.Command {
	var f folderFlags
	group := f.set("merge")
	model := group.flags.String("model", "", "`folder` of the model")
	adapter := group.flags.String("adapter", "", "`folder` of the adapters")
	cmd := &cobra.Command{
		Use:   "merge --model DIR --adapter DIR --output DIR",
		Short: "add adapters to a model's weights",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch "" {
			case *model:
				return errors.New("merge: --model is missing: the folder of the model")
			case *adapter:
				return errors.New("merge: --adapter is missing: the folder of the adapters")
			}
			ctx, stop := f.interruptible()
			defer stop()
			dt, err := f.check()
			if err == nil {
				err = train.Merge{Model: *model, Adapters: *adapter, Output: f.output, Replace: f.replace, DType: dt}.Run(ctx)
			}
			if err != nil {
				return fmt.Errorf("merge: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s with the adapters of %s\n", f.output, *model, *adapter)
			return nil
		},
	}
	return described(cmd, mergeUsage, group)
}
