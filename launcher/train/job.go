// Package train is the loop that a worker of `gorun train.yaml` runs: it builds
// the model that the configuration names, joins the other ranks, and trains,
// evaluates, samples and saves.
//
// job.go builds and closes everything, loop.go is the order of events of a run,
// step.go one step; state.go is what a checkpoint holds, resume.go how a run goes
// on from one.
package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// job is one rank of a run. Its methods are for one goroutine, the host's.
type job struct {
	cfg   *config.Config
	group *comm.Group
	out   *status.Writer

	compute, comms *device.CPUStream
	tracer         *trace.Recorder
	ops            *cpu.Ops
	arch           *architecture
	env            models.Env
	model          models.Model
	weights        *param.Replica
	sink           *ddp.DDP
	optim          *optimizer

	data    *data.Set
	loader  *data.Loader
	eval    *data.Evaluation // nil where there is nothing to evaluate on
	batches []models.Batch   // the micro-batches of a step
	loss    tensor.Tensor    // f64[1]: sum over this rank's targets of the step
	lossSum tensor.Tensor    // f64[1]: the same over all ranks

	sums, maxima tensor.Tensor // f64: what exchange sends

	total   int          // steps of the whole job
	done    int          // steps done, those before a resume included
	targets float64      // of the next step, over all ranks
	early   string       // why the run ends before total
	metrics *metricsFile // rank 0 only
	totals  totals
	closers []func() error // last in, first out
}

// Run trains as cfg says, as the rank that the environment names. It returns
// when the training is done, or, once ctx has ended, after the step that is under
// way and a checkpoint.
func Run(ctx context.Context, cfg *config.Config) (err error) {
	out, err := status.FromEnv()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	local, _ := strconv.Atoi(os.Getenv("LOCAL_WORLD_SIZE"))
	return run(ctx, cfg, out, max(1, local), joinWorld)
}

// run is Run with the ways to the world given: where to report, how many ranks
// share the host, and how to join the group.
func run(ctx context.Context, cfg *config.Config, out *status.Writer, local int, join func(context.Context, config.Comm) (*comm.Group, error)) error {
	j := &job{cfg: cfg, out: out}
	err := j.open(ctx, local, join)
	opened := err == nil
	if opened {
		err = j.train(ctx)
	}
	if err != nil && j.group != nil {
		if j.group.Err() != nil { // a collective failed: which ones did this rank make?
			err = errors.Join(err, dumpCalls(os.Getenv(status.ErrorFileVariable), j.group.Recent()))
		}
		j.group.Abort(err) // the others learn why, and no stream waits for them
	}
	if closing := j.close(); err == nil {
		return closing // behind an error, what closing says is its echo
	}
	if opened || ctx.Err() == nil {
		return err
	}
	// A signal, the user's or that of a launcher which has lost another rank, has
	// ended the job before there was anything to save. The launcher says so.
	if j.group != nil {
		j.say("ended before the first step: %v", err)
	}
	return nil
}

// dumpCalls leaves the group's latest calls beside this rank's error file, for a
// comparison of ranks. Without an agent there is no such file and no dump.
func dumpCalls(errorFile string, calls []comm.Record) error {
	if errorFile == "" {
		return nil
	}
	var b strings.Builder
	for _, c := range calls {
		took := "has not ended"
		if !c.End.IsZero() && !c.Start.IsZero() {
			took = fmt.Sprintf("took %s, sent %d bytes", c.End.Sub(c.Start), c.Sent)
		}
		fmt.Fprintf(&b, "%s  %s, %s\n", c.Enqueued.Format("15:04:05.000000"), c, took)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(errorFile), "collectives.txt"), []byte(b.String()), 0o666); err != nil {
		return fmt.Errorf("the latest collectives could not be written: %w", err)
	}
	return nil
}

// joinWorld makes the group of all ranks of the job.
func joinWorld(ctx context.Context, c config.Comm) (*comm.Group, error) {
	return comm.Join(ctx, comm.Options{
		Timeout: c.Timeout, Transport: c.Transport, Interface: c.Interface, Ports: c.Ports,
		Algo: comm.Algorithm(c.Algo), Conns: c.Channels, Chunk: int(c.Chunk),
	})
}

// open builds everything that the loop needs. What can be wrong with the input
// is found here, before the first step.
func (j *job) open(ctx context.Context, local int, join func(context.Context, config.Comm) (*comm.Group, error)) (err error) {
	if j.arch, err = describe(j.cfg); err != nil {
		return err
	}
	j.onClose(j.arch.close)
	if err := j.arch.fits(local); err != nil {
		return err
	}
	if j.data, err = openData(ctx, j.cfg, j.arch.vocab); err != nil {
		return err
	}
	j.onClose(j.data.Close)
	threads := j.cfg.Train.Threads
	if threads == 0 {
		threads = max(1, runtime.NumCPU()/local)
	}
	if j.ops, err = cpu.New(threads, cpu.Options{GEMM: j.cfg.Train.MatMul}); err != nil {
		return err
	}
	j.onClose(func() error { j.ops.Close(); return nil })
	if j.group, err = j.joinGroup(ctx, join); err != nil {
		return err
	}
	j.onClose(j.group.Close)
	j.tracer = trace.NewRecorder(j.rank())
	j.compute = device.NewCPUStream("compute", j.tracer)
	j.comms = device.NewCPUStream("comm", j.tracer)
	j.onClose(j.closeStreams)
	if err := j.agree(ctx); err != nil {
		return err
	}
	if err := j.build(); err != nil {
		return err
	}
	return j.start(ctx)
}

func (j *job) joinGroup(ctx context.Context, join func(context.Context, config.Comm) (*comm.Group, error)) (*comm.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Comm.Timeout)
	defer cancel()
	return join(ctx, j.cfg.Comm)
}

func (j *job) onClose(f func() error) { j.closers = append(j.closers, f) }

// close ends streams before the group, and the group before the tracer.
func (j *job) close() (err error) {
	for i := len(j.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, j.closers[i]())
	}
	j.closers = nil
	return err
}

func (j *job) rank() int { return j.group.Rank() }
func (j *job) size() int { return j.group.Size() }

// closeStreams ends both streams at once: each may be waiting for the other. An
// error of theirs was returned already by who waited for them.
func (j *job) closeStreams() error {
	closed := make(chan struct{})
	go func() { // ends with Close below
		j.comms.Close()
		close(closed)
	}()
	j.compute.Close()
	<-closed
	return nil
}

// build makes the model, its weights and the optimizer, and what steps write to.
func (j *job) build() (err error) {
	c, dev := j.cfg, device.NewCPU()
	j.env = models.Env{Device: dev, Stream: j.compute, Ops: j.ops, B: c.Train.MicroBatch, T: c.Data.SeqLen}
	if j.model, err = j.arch.build(j.env); err != nil {
		return err
	}
	if j.weights, err = param.NewReplica(dev, j.model.Params()); err != nil {
		return err
	}
	if j.optim, err = newOptimizer(dev, c.Train, j.model.Params()); err != nil {
		return err
	}
	for range c.Train.GradAccum {
		j.batches = append(j.batches, newBatch(j.env.B, j.env.T))
	}
	for t, n := range map[*tensor.Tensor]int{&j.loss: 1, &j.lossSum: 1, &j.sums: 8, &j.maxima: 16} {
		if *t, err = tensor.Alloc(dev, dtype.F64, n); err != nil {
			return err
		}
	}
	return nil
}

func newBatch(b, t int) models.Batch {
	return models.Batch{B: b, T: t, Tokens: models.Ints(make([]int32, b*t)), Targets: models.Ints(make([]int32, b*t))}
}

// wrap makes the gradient buckets, in the order that a checkpoint recorded, or
// in the model's.
func (j *job) wrap(ctx context.Context, order []string) (err error) {
	p, c := j.cfg.Parallel, j.cfg.Comm
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	j.sink, err = ddp.New(ctx, j.group, j.compute, j.comms, j.model.Params(), ddp.Options{
		PlanOptions: bucketOptions(p, order), NoOverlap: !c.Overlap, FindUnused: p.FindUnusedParameters, StaticGraph: p.StaticGraph,
	})
	return err
}

func bucketOptions(p config.Parallel, order []string) ddp.PlanOptions {
	const mib = 1 << 20
	return ddp.PlanOptions{BucketCap: int(p.BucketCapMB * mib), FirstBucket: int(p.FirstBucketMB * mib), Order: order}
}
