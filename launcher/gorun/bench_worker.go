package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/bench"
)

const benchWorker = "bench-worker"

// newBenchWorker is the command by which the agent starts this binary again as one
// rank of a benchmark.
func newBenchWorker() *cobra.Command {
	return &cobra.Command{
		Use:    benchWorker + " options",
		Short:  "one rank of a benchmark; started by gorun itself",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Getenv("RANK") == "" {
				return errors.New("bench-worker is started by gorun itself: write gorun bench")
			}
			var o bench.Options
			if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
				return fmt.Errorf("bench-worker: options %q: %w", args[0], err)
			}
			if err := placeWorker(&o); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return recorded(workBench(ctx, o))
		},
	}
}

// placeWorker binds this worker as --bind asks, with its place on its host from the
// environment. Where ranks outnumber cores it leaves Go one processor: a second one
// would have its threads take the core from the rank that is awaited.
func placeWorker(o *bench.Options) error {
	rank, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return fmt.Errorf("--bind: LOCAL_RANK: %w", err)
	}
	size, err := strconv.Atoi(os.Getenv("LOCAL_WORLD_SIZE"))
	if err != nil {
		return fmt.Errorf("--bind: LOCAL_WORLD_SIZE: %w", err)
	}
	fewer := size > bench.Cores()
	if fewer && os.Getenv("GOMAXPROCS") == "" {
		o.Crowded = true
		runtime.GOMAXPROCS(1)
	}
	if o.Bind == "off" || o.Bind == "auto" && fewer {
		return nil
	}
	o.Bound = true
	return bench.Bind(rank, size)
}

// workBench joins the other ranks and measures.
func workBench(ctx context.Context, o bench.Options) error {
	g, err := comm.Join(ctx, comm.Options{
		Timeout: o.Timeout, Transport: o.Transport, Interface: o.Interface,
		Ports: o.Ports, Chunk: int(o.Chunk), Conns: o.Channels, Algo: comm.Algorithm(o.Algo),
	})
	if err != nil {
		return err
	}
	err = bench.Run(ctx, g, o, os.Stdout)
	if closed := g.Close(); err == nil { // else closed says the same again
		err = closed
	}
	return err
}
