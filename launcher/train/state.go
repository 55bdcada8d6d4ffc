package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/safetensors"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// The files of a checkpoint. Under data parallelism all ranks hold the same, and
// rank 0 writes.
const (
	weightsFile   = "model.safetensors"
	optimizerFile = "optimizer.safetensors" // m.NAME and v.NAME
)

// state is a checkpoint's metadata: what a run needs beside the tensors to go on
// as if it had not stopped.
type state struct {
	Step int `json:"step"`
	// Applied is Step without the steps that were skipped.
	Applied int `json:"applied"`
	World   int `json:"world"`
	// Identity is what a resumed run must share, Data the fingerprint of what it
	// trains on.
	Identity config.Identity `json:"identity"`
	Data     string          `json:"data"`
	// Order is the order of the gradient buckets: sums are formed alike only in
	// the same buckets.
	Order []string `json:"bucket_order"`
	// Backend computed the matrix products; another one rounds otherwise.
	Backend string `json:"backend"`
}

func (j *job) state() state {
	return state{
		Step: j.done, Applied: j.optim.applied, World: j.size(), Identity: j.cfg.Identity(j.size()),
		Data: fmt.Sprintf("%016x", j.data.Train.Info().Fingerprint), Order: j.sink.Order(), Backend: j.ops.Backend(),
	}
}

func (j *job) checkpoints() string { return j.path("checkpoints") }

func (j *job) checkpointPath(step int) string {
	return filepath.Join(j.checkpoints(), fmt.Sprintf("step-%08d", step))
}

// save publishes a checkpoint of the current step. Only rank 0 has to: the
// optimizer has run, so every rank holds the same bits.
func (j *job) save() (err error) {
	if j.rank() != 0 {
		return nil
	}
	d, err := checkpoint.Begin(j.checkpoints(), int64(j.done))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Discard()) }()
	for name, tensors := range map[string][]safetensors.Tensor{weightsFile: j.weightTensors(), optimizerFile: j.optimizerTensors()} {
		fill := func(w io.Writer) error { return safetensors.Encode(w, tensors, nil) }
		if err := d.WriteFile(name, fill); err != nil {
			return err
		}
	}
	if _, err := d.Publish(j.state()); err != nil {
		return err
	}
	if keep := j.cfg.Checkpoint.Keep; keep > 0 {
		if _, err := checkpoint.Prune(j.checkpoints(), keep); err != nil {
			j.say("older checkpoints could not be removed: %v", err)
		}
	}
	return nil
}

// fallback says what there is where the last checkpoint could not be written.
func (j *job) fallback() string {
	refs, err := checkpoint.List(j.checkpoints())
	if err != nil || len(refs) == 0 {
		return "and there is none before it"
	}
	return fmt.Sprintf("and the newest is of step %d (--resume goes on from it)", refs[len(refs)-1].Step)
}

func (j *job) weightTensors() (out []safetensors.Tensor) {
	for _, p := range j.model.Params() {
		out = append(out, entry(p.Name, j.weights.Weight(p)))
	}
	return out
}

func (j *job) optimizerTensors() (out []safetensors.Tensor) {
	for _, p := range j.optim.params {
		out = append(out, entry("m."+p.Name, j.optim.m[p]), entry("v."+p.Name, j.optim.v[p]))
	}
	return out
}

func entry(name string, t tensor.Tensor) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: t.DType, Shape: t.Shape, Data: safetensors.Bytes(t.Buf.Bytes())}
}

// start gives the weights their first values: a checkpoint's, those of a model's
// folder, or those that the seed makes. It leaves j ready for step j.done.
func (j *job) start(ctx context.Context) error {
	from, err := j.resumeFrom(ctx)
	if err != nil {
		return err
	}
	var order []string
	if from == "" {
		err = j.initialize()
	} else {
		order, err = j.restore(from)
	}
	if err != nil {
		return err
	}
	if err := j.wrap(ctx, order); err != nil {
		return err
	}
	if err := j.sink.CheckReplicas(ctx, j.model.Params(), j.weights.Weight); err != nil {
		return err
	}
	if err := j.loaders(); err != nil {
		return err
	}
	if j.rank() == 0 {
		if err := j.setAside(from); err != nil {
			return err
		}
		if err := os.MkdirAll(j.cfg.Output, 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(j.path(jobFile), []byte(os.Getenv("TORCHELASTIC_RUN_ID")), 0o666); err != nil {
			return err
		}
	}
	j.introduce(from)
	return nil
}

func (j *job) initialize() error {
	if j.arch.weights != nil {
		return j.arch.weights.Load(j.model.Params(), func(p *param.Param, values []float32) error {
			copy(j.weights.Weight(p).F32(), values)
			return nil
		})
	}
	for _, p := range j.model.Params() {
		j.model.Init(p, j.cfg.Seed, j.weights.Weight(p).F32())
	}
	return nil
}

// setAside moves what an earlier run left in the output folder, and this one does
// not go on from, to a folder old-N beside it: nothing is lost, and a later
// --resume does not take up what this run has left behind.
func (j *job) setAside(from string) error {
	var move []string
	if from == "" || !sameFolder(filepath.Dir(from), j.checkpoints()) {
		move = []string{"metrics.jsonl", "checkpoints", "samples", "trace.json"}
	} else {
		refs, err := checkpoint.List(j.checkpoints())
		if err != nil {
			return err
		}
		for _, r := range refs {
			if r.Step > int64(j.done) {
				move = append(move, filepath.Join("checkpoints", filepath.Base(r.Dir)))
			}
		}
	}
	move = slices.DeleteFunc(move, func(name string) bool {
		_, err := os.Stat(j.path(name))
		return errors.Is(err, os.ErrNotExist)
	})
	if len(move) == 0 {
		return nil
	}
	var old string
	for n := 1; ; n++ {
		old = j.path(fmt.Sprintf("old-%d", n))
		if err := os.Mkdir(old, 0o777); err == nil {
			break
		} else if !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, name := range move {
		to := filepath.Join(old, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.Rename(j.path(name), to); err != nil {
			return err
		}
	}
	j.say("%s held an earlier run's %s: moved to %s", j.cfg.Output, strings.Join(move, ", "), old)
	return nil
}

func sameFolder(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// introduce tells the user what is about to run.
func (j *job) introduce(from string) {
	all, trained := j.arch.sizes()
	model := fmt.Sprintf("%s, %d parameters", j.arch.name, all)
	if trained != all {
		model += fmt.Sprintf(", %d of them trained", trained)
	}
	share := j.share()
	j.say("model: %s, on the cpu", model)
	j.say("ranks: %d, %d threads each, matrix products by %s", j.size(), j.ops.Threads(), j.ops.Backend())
	j.say("data: %s", j.data.Train.Info())
	j.say("a step: %d sequences of %d tokens; %d steps", share.Batch(), j.cfg.Data.SeqLen, j.total)
	if j.arch.weights != nil {
		for _, note := range j.arch.weights.Notes {
			j.say("%s: %s", j.arch.weights.Dir, note)
		}
	}
	if from != "" {
		j.say("going on from %s, step %d of %d", from, j.done, j.total)
	}
}
