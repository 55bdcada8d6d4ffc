// Package train is the loop that a worker of `gorun train.yaml` runs: it builds
// the model that the configuration names, joins the other ranks, and trains,
// evaluates, samples and saves.
//
// The run: job.go opens and closes everything, machine.go the device, build.go makes
// what steps work on and start.go gives it its first values; loop.go is the order of
// events, step.go one step, optimizer.go its update, report.go what is told of it
// (metrics.go, watch.go, slow.go, summary.go, trace.go and gputrace.go). length.go and
// schedule.go are how many steps there are and their learning rates, evaluations.go and
// best.go what follows from evaluations.
//
// What it works on: model.go is the model that the configuration names, memory.go and
// offload.go what a rank holds of it, plan.go all of that without a run; data.go and
// text.go are what it reads.
//
// How ranks train together: reducer.go is what parallel.strategy decides on, replica.go
// plain data parallelism, zero.go and shards.go ZeRO, compress.go fewer bytes between
// them.
//
// Checkpoints: files.go and state.go are what one holds, weights.go brings it from the
// device and back, save.go and savestages.go write it beside training (beside.go),
// resume.go and restore.go are how a run goes on from one, changes.go what it does
// otherwise, output.go where everything lies.
//
// Models without a run: export.go, exportlora.go and exportchat.go make a folder of a
// checkpoint, generate.go lets one write, as sample.go does within a run.
package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/data"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// job is one rank of a run. Its methods are for one goroutine, the host's.
type job struct {
	cfg   *config.Config
	group *comm.Group
	out   *status.Writer

	*machine
	host     *device.CPUStream // of collectives between the hosts' memories
	tracer   *trace.Recorder
	gpuTrace *gpuTrace // nil unless a trace of a GPU is asked for
	arch     *architecture
	env      models.Env
	model    models.Model
	weights  param.Weights
	forward  param.Weights  // the same, as a training step's forward pass reads them
	sink     param.GradSink // where the backward pass writes gradients
	reducer  reducer
	keeper   keeper
	optim    *optimizer

	language *language
	data     *data.Set
	loader   *data.Loader
	eval     *data.Evaluation // nil where there is nothing to evaluate on
	feeds    []feed           // the micro-batches of a step
	scalars  scalars
	staging  device.Buffer // host memory through which weights travel; see weights.go
	private  []private     // tensors of this rank alone, which a strategy has added
	shot     device.Buffer // host memory for a copy of what this rank saves; none: steps wait for a save
	saving   *saving       // the checkpoint that is on its way

	sums, maxima tensor.Tensor // f64: what exchange sends

	total    int          // steps of the whole job
	course   course       // of the learning rate over them
	done     int          // steps done, those before a resume included
	first    int          // of these, when this run began
	made     *made        // the last step, until it is reported
	targets  float64      // of the next step, over all ranks
	counted  int64        // of the bytes sent, those that steps report
	evals    evaluations  // those up to done
	early    string       // why the run ends before total, without the job's being done
	ended    string       // why the job is done before total
	backend  string       // what the bits depend on; see rounding
	base     string       // what adapters are for; see baseOf
	metrics  *metricsFile // rank 0 only
	watchers []watcher    // likewise
	totals   totals
	closers  []func() error // last in, first out
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
	ranks, _ := strconv.Atoi(os.Getenv("LOCAL_WORLD_SIZE"))
	local, _ := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	world, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	return run(ctx, cfg, out, place{local: local, ranks: max(1, ranks), world: world}, joinWorld)
}

// joiner joins the group of all ranks; dev is nil where only host memory is moved.
type joiner func(ctx context.Context, c config.Comm, dev device.Device) (*comm.Group, error)

// run is Run with the ways to the world given: where to report, which of the
// ranks that share the host this is, and how to join the group.
func run(ctx context.Context, cfg *config.Config, out *status.Writer, at place, join joiner) error {
	j := &job{cfg: cfg, out: out}
	err := j.open(ctx, at, join)
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
func joinWorld(ctx context.Context, c config.Comm, dev device.Device) (*comm.Group, error) {
	return comm.Join(ctx, comm.Options{
		Timeout: c.Timeout, Transport: c.Transport, RDMA: c.RDMA(), Interface: c.Interface, Ports: c.Ports,
		Algo: comm.Algorithm(c.Algo), Conns: c.Channels, Chunk: int(c.Chunk), Tune: c.Tune,
		Device: dev, Engine: c.Engine, MaxCTAs: c.MaxCTAs, TopoFile: c.TopoFile, Check: os.Getenv("GORUN_COMM_CHECK") == "1",
	})
}

// open builds everything that the loop needs. What can be wrong with the input
// is found here, before the first step.
func (j *job) open(ctx context.Context, at place, join joiner) (err error) {
	if j.arch, err = describe(j.cfg, at.ranks, chooseDevice); err != nil {
		return err
	}
	j.onClose(j.arch.close)
	if err := j.arch.spread(at.world); err != nil {
		return err
	}
	if j.language, err = openLanguage(j.cfg); err != nil {
		return err
	}
	if err := j.samplesFit(); err != nil {
		return err
	}
	if j.data, err = openData(ctx, j.arch, j.language, j.teller(at)); err != nil {
		return err
	}
	j.onClose(j.data.Close)
	if j.machine, err = openMachine(j.cfg, j.arch.on, at, j.onClose); err != nil {
		return err
	}
	if err := j.arch.fits(j.machine, at.ranks); err != nil {
		return err
	}
	if j.group, err = j.joinGroup(ctx, join); err != nil {
		return err
	}
	j.onClose(j.group.Close)
	if err := j.movesGPUMemory(); err != nil {
		return err
	}
	j.tracer = trace.NewRecorder(j.rank())
	if err := j.startStreams(j.tracer); err != nil {
		return err
	}
	j.host = device.NewCPUStream("host", nil)
	j.onClose(j.closeStreams)
	if err := j.agree(ctx); err != nil {
		return err
	}
	if err := j.build(); err != nil {
		return err
	}
	if j.backend, err = j.rounding(); err != nil {
		return err
	}
	if j.base, err = baseOf(j.arch); err != nil {
		return err
	}
	return j.start(ctx)
}

func (j *job) joinGroup(ctx context.Context, join joiner) (*comm.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Comm.Timeout)
	defer cancel()
	if j.gpu == nil {
		return join(ctx, j.cfg.Comm, nil)
	}
	return join(ctx, j.cfg.Comm, j.gpu)
}

// movesGPUMemory refuses a group that cannot move the memory of its GPUs, before
// there is any: all ranks find the same.
func (j *job) movesGPUMemory() error {
	if why, none := strings.CutPrefix(j.group.GPUEngine(), "none: "); none {
		return errors.New(why)
	}
	return nil
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

// closeStreams ends all streams at once: each may be waiting for another. An error
// of theirs was returned already by who waited for them.
func (j *job) closeStreams() error {
	var closing sync.WaitGroup
	for _, s := range []device.Stream{j.compute, j.comms, j.host} {
		closing.Go(func() { s.Close() })
	}
	closing.Wait()
	return nil
}
