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
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
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

// resumeFrom is the folder of the checkpoint to go on from, "" for none. Rank 0
// looks, and tells the others: folders may change while the ranks start.
func (j *job) resumeFrom(ctx context.Context) (string, error) {
	want := j.cfg.Checkpoint.Resume
	if want == "none" && !restarted() {
		return "", nil
	}
	const room = 4096
	answer := make([]byte, room) // a path, or "!" and an error
	var failure error
	if j.rank() == 0 {
		if restarted() && j.begun() {
			want = "auto"
		}
		dir, err := j.choose(want)
		if err != nil {
			failure, dir = err, "!"+err.Error()
		}
		if len(dir) > room {
			return "", fmt.Errorf("the checkpoint's path has %d bytes, more than %d", len(dir), room)
		}
		copy(answer, dir)
	}
	j.group.Broadcast(j.comms, device.Of(answer), dtype.U8, 0)
	if err := j.comms.Synchronize(ctx); err != nil {
		return "", err
	}
	if failure != nil {
		return "", failure
	}
	dir := strings.TrimRight(string(answer), "\x00")
	if why, ok := strings.CutPrefix(dir, "!"); ok {
		return "", errors.New(why)
	}
	return dir, nil
}

// restarted says that the launcher has started the job's workers before, which
// failed.
func restarted() bool {
	n := os.Getenv("TORCHELASTIC_RESTART_COUNT")
	return n != "" && n != "0"
}

// jobFile names in the output folder the job whose checkpoints lie there.
const jobFile = ".gorun.job"

// begun says that the checkpoints in the output folder are of this job, from
// before its workers were started again.
func (j *job) begun() bool {
	id, err := os.ReadFile(j.path(jobFile))
	return err == nil && string(id) == os.Getenv("TORCHELASTIC_RUN_ID")
}

// choose finds and verifies the checkpoint that checkpoint.resume means.
func (j *job) choose(want string) (string, error) {
	if want == "none" {
		return "", nil
	}
	if want != "auto" {
		c, err := checkpoint.Open(want)
		if err != nil {
			return "", offer(err, want, filepath.Join(want, "checkpoints"), filepath.Dir(filepath.Clean(want)))
		}
		return c.Dir, nil
	}
	newest, broken, err := checkpoint.Newest(j.checkpoints())
	switch {
	case len(broken) > 0:
		return "", offer(broken[0].Err, j.checkpoints())
	case errors.Is(err, checkpoint.ErrNone):
		j.say("there is no checkpoint in %s to go on from: the training starts anew", j.checkpoints())
		return "", nil
	case err != nil:
		return "", err
	}
	return newest.Dir, nil
}

// offer adds to the error of a damaged checkpoint which complete one there is: the
// newest in the first of the folders that holds one.
func offer(err error, folders ...string) error {
	for _, root := range folders {
		if newest, _, err2 := checkpoint.Newest(root); err2 == nil {
			return fmt.Errorf("%w; the newest complete one is of step %d: go on from it with --set checkpoint.resume=%s", err, newest.Step, newest.Dir)
		}
	}
	return fmt.Errorf("%w; there is no complete checkpoint beside it to go on from", err)
}

// restore reads the checkpoint in dir, which rank 0 has verified, and returns the
// recorded order of buckets.
func (j *job) restore(dir string) (order []string, err error) {
	c, err := checkpoint.Inspect(dir)
	if err != nil {
		return nil, err
	}
	var s state
	if err := c.Meta(&s); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	diff := j.cfg.Identity(j.size()).Diff(s.Identity)
	if mine := fmt.Sprintf("%016x", j.data.Train.Info().Fingerprint); mine != s.Data {
		diff = append(diff, fmt.Sprintf("the training data's content: fingerprint %s in the checkpoint, now %s", s.Data, mine))
	}
	if len(diff) > 0 {
		return nil, fmt.Errorf("%s was written by another job; give its settings, or start anew without --resume:\n  %s",
			dir, strings.Join(diff, "\n  "))
	}
	if err := fillFrom(c, weightsFile, j.weightTensors(), j.weightOf); err != nil {
		return nil, err
	}
	if err := fillFrom(c, optimizerFile, j.optimizerTensors(), j.momentOf); err != nil {
		return nil, err
	}
	j.done, j.optim.applied = s.Step, s.Applied
	if s.Backend != j.ops.Backend() || s.World != j.size() {
		j.say("the checkpoint was written by %d ranks with %s, now %d ranks with %s: results agree up to rounding",
			s.World, s.Backend, j.size(), j.ops.Backend())
	}
	return s.Order, nil
}

func (j *job) weightOf(name string) []byte {
	for _, p := range j.model.Params() {
		if p.Name == name {
			return j.weights.Weight(p).Buf.Bytes()
		}
	}
	return nil
}

func (j *job) momentOf(name string) []byte {
	moments := j.optim.m
	if strings.HasPrefix(name, "v.") {
		moments = j.optim.v
	}
	for _, p := range j.optim.params {
		if p.Name == name[2:] {
			return moments[p].Buf.Bytes()
		}
	}
	return nil
}

// fillFrom copies every wanted tensor of a checkpoint's file to its place.
func fillFrom(c *checkpoint.Checkpoint, file string, want []safetensors.Tensor, place func(name string) []byte) error {
	path, err := c.Path(file)
	if err != nil {
		return err
	}
	r, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, w := range want {
		info, b, err := r.Tensor(w.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if info.DType != w.DType || !slices.Equal(info.Shape, w.Shape) {
			return fmt.Errorf("%s: %s is %s%v, the model has %s%v", path, w.Name, info.DType, info.Shape, w.DType, w.Shape)
		}
		copy(place(w.Name), b)
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
