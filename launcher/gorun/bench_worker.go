package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/bench"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
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
				return recorded(err)
			}
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return recorded(workBench(ctx, o))
		},
	}
}

// placeWorker binds this worker as --bind asks, with its place on its host from the
// environment. Where ranks outnumber cores it leaves Go one processor: a second one
// would have its threads take the core from the rank that is awaited. A rank with a GPU
// has threads that work at the same time, its driver's among them.
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
	if o.Bind == "off" || o.Bind == "auto" && (fewer || o.Device == "gpu") {
		return nil
	}
	o.Bound = true
	return bench.Bind(rank, size)
}

// workBench joins the other ranks and measures.
func workBench(ctx context.Context, o bench.Options) (err error) {
	dev := device.Device(device.NewCPU())
	if o.Device == "gpu" {
		gpu, err := openBenchGPU()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, gpu.Close()) }()
		defer gpu.Bind()() // this goroutine makes all calls
		dev = gpu
	}
	kinds := []string{o.Engine}
	if o.Engine == bench.AllEngines {
		kinds = []string{"ring", "nccl"}
	}
	var engines []bench.Engine
	for _, kind := range kinds {
		var e bench.Engine
		if len(kinds) > 1 {
			e.Name = kind
		}
		if e.Group, e.Port, err = joinBench(ctx, o, dev, kind); err != nil {
			break
		}
		engines = append(engines, e)
	}
	if err == nil {
		err = bench.Run(ctx, dev, engines, o, os.Stdout)
	}
	for _, e := range engines {
		if closed := e.Group.Close(); err == nil { // else closed says the same again
			err = closed
		}
	}
	return err
}

// joinBench joins the ranks' group, and says which port of RDMA it takes here, if any.
func joinBench(ctx context.Context, o bench.Options, dev device.Device, engine string) (*comm.Group, string, error) {
	log := &portLog{Handler: slog.Default().Handler()}
	g, err := comm.Join(ctx, comm.Options{
		Name:    "bench-" + engine,
		Timeout: o.Timeout, Transport: o.Transport, Interface: o.Interface,
		Ports: o.Ports, Chunk: int(o.Chunk), Conns: o.Channels, Algo: comm.Algorithm(o.Algo), Tune: o.Tune,
		Device: dev, Engine: engine, Logger: slog.New(log),
	})
	log.mu.Lock()
	defer log.mu.Unlock()
	return g, log.port, err
}

// portLog is a log that keeps which port of RDMA a group has taken, and its address:
// that is among the choices that a group logs at debug level.
type portLog struct {
	slog.Handler
	mu   sync.Mutex
	port string // guarded by mu
}

// Enabled lets all records come to Handle, and those below the log's level no further.
func (l *portLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *portLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "rdma: joined" {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "port" {
				l.mu.Lock()
				l.port = a.Value.String()
				l.mu.Unlock()
			}
			return true
		})
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// openBenchGPU opens the GPU that is this worker's by its place on the host.
func openBenchGPU() (*cuda.Device, error) {
	rank, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return nil, fmt.Errorf("--device gpu: LOCAL_RANK: %w", err)
	}
	n, err := cuda.Count()
	if err != nil {
		return nil, fmt.Errorf("--device gpu: %w", err)
	}
	if rank >= n {
		return nil, fmt.Errorf("--device gpu: this is local rank %d, and the host shows %d GPUs: a rank needs one of its own", rank, n)
	}
	return cuda.Open(rank)
}
