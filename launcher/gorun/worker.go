package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// newWorker is the command by which the agent starts itself again as a worker of
// built-in training.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:    "worker config.yaml",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return errors.New("not built in")
		},
	}
}
