package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/launcher/train"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/models/hf"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// trainer is the built-in training as the launcher needs it.
type trainer struct {
	// run is one rank's work; the environment says which. It returns when the
	// training is done, or soon after ctx ends, having saved what it could.
	run func(ctx context.Context, cfg *config.Config) error
	// plan describes the work of world ranks, local of them here, without doing it,
	// for --dry-run. An error beside a text says why this host cannot run the plan.
	plan func(cfg *config.Config, world, local int) (string, error)
	// wantsGPUs says that the job would run on GPUs where there are any.
	wantsGPUs func(cfg *config.Config) bool
}

// training is a YAML file that is to be trained, once it is read.
type training struct {
	cfg      *config.Config
	resolved []byte // the same with every key given
}

// loadTraining reads the file and what the command line changes of it.
func (l *launch) loadTraining() (*training, error) {
	sets := slices.Clone(l.set)
	if l.resume {
		sets = append(sets, "checkpoint.resume=auto")
	}
	if l.trace != 0 {
		sets = append(sets, fmt.Sprintf("log.trace=%d", l.trace))
	}
	cfg, err := config.Load(l.config, sets, checks()...)
	if err != nil {
		return nil, err
	}
	resolved, err := cfg.Marshal()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.config, err)
	}
	return &training{cfg: cfg, resolved: resolved}, nil
}

// checks find files that are not there, or say something else, before a worker is
// started.
func checks() []config.Check {
	all := []config.Check{
		{Key: "data.train", Look: func(c *config.Config) error { return train.CheckData(c.Data) }},
		{Key: "data.eval", Look: func(c *config.Config) error { return data.Check(c.Data.Eval) }},
		{Key: "model.path", Look: checkModel},
	}
	for _, key := range config.ShapeKeys() {
		all = append(all, config.Check{Key: key, Look: func(c *config.Config) error { return checkShape(c, key) }})
	}
	return all
}

func checkModel(c *config.Config) error {
	if c.Model.Path == "" {
		return nil
	}
	_, err := hf.ReadShape(c.Model.Path)
	return err
}

// checkShape holds a key of the model's shape against the folder that gives it: the
// same file may train random weights and real ones.
func checkShape(c *config.Config, key string) error {
	if c.Model.Path == "" {
		return nil
	}
	shape, err := hf.ReadShape(c.Model.Path)
	if err != nil {
		return nil // checkModel says so
	}
	given := c.Value(key)
	if folder, same := shape.Same(strings.TrimPrefix(key, "model."), given); !same {
		return fmt.Errorf("%v: config.json in model.path says %v; leave the key out", given, folder)
	}
	return nil
}

// write leaves the resolved file in a folder and returns its path.
func (t *training) write(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, t.resolved, 0o644); err != nil {
		return "", fmt.Errorf("the resolved configuration: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("the resolved configuration: %w", err)
	}
	return filepath.Abs(path)
}

// recorded leaves a worker's error where the agent finds it, with whom it blames.
// The agent then says it once for the whole job, so this worker need not.
func recorded(err error) error {
	if failed := status.RecordError(err); failed != nil {
		// The agent then takes a worker's last line for the reason.
		return fmt.Errorf("%w\n%s", failed, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if err != nil && os.Getenv(status.ErrorFileVariable) != "" {
		return told{err}
	}
	return err
}

// newWorker is the command by which the agent starts itself again as a worker of
// the built-in training. A signal to stop ends its context, so that it may save.
func newWorker(tr trainer) *cobra.Command {
	return &cobra.Command{
		Use:    "worker config.yaml",
		Short:  "one rank of the built-in training; started by gorun itself",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Getenv("RANK") == "" {
				return errors.New("worker is started by gorun itself: write gorun train.yaml")
			}
			cfg, err := config.Load(args[0], nil)
			if err != nil {
				return err
			}
			ctx, stop := stoppable()
			defer stop()
			return recorded(tr.run(ctx, cfg))
		},
	}
}

// stoppable returns a context that ends with a signal to stop. Its cause is the agent's
// reason for that, a *status.StopError, or where it has none the signal.
func stoppable() (ctx context.Context, stop func()) {
	signalled, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	ctx, end := context.WithCancelCause(context.Background())
	context.AfterFunc(signalled, func() {
		why := status.StopReason()
		if _, said := errors.AsType[*status.StopError](why); why != nil && !said {
			slog.Warn("the agent's reason to stop this worker cannot be read", "err", why)
			why = nil
		}
		end(cmp.Or(why, context.Cause(signalled)))
	})
	return ctx, stop
}
