package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

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
		switch {
		case err != nil:
			failure, dir = err, "!"+err.Error() // what does not fit is cut off
		case len(dir) > room:
			return "", fmt.Errorf("the checkpoint's path has %d bytes, more than %d", len(dir), room)
		}
		copy(answer, dir)
	}
	j.group.Broadcast(j.host, device.Of(answer), dtype.U8, 0)
	if err := j.host.Synchronize(ctx); err != nil {
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
	newest, broken, err := checkpoint.Newest(j.checkpoints(), nil)
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
		if newest, _, err2 := checkpoint.Newest(root, nil); err2 == nil {
			return fmt.Errorf("%w; the newest complete one is of step %d: go on from it with --set checkpoint.resume=%s", err, newest.Step, newest.Dir)
		}
	}
	return fmt.Errorf("%w; there is no complete checkpoint beside it to go on from", err)
}

// recorded is a checkpoint whose tensors are not read yet.
type recorded struct {
	*checkpoint.Checkpoint
	state
	order []string // of gradients, by the model's parameters
}

// recorded reads what the checkpoint in dir, which rank 0 has verified, says of its
// job, which must be this one.
func (j *job) recorded(dir string) (r recorded, err error) {
	if r.Checkpoint, err = checkpoint.Inspect(dir); err != nil {
		return r, err
	}
	s := &r.state
	if err := r.Meta(s); err != nil {
		return r, fmt.Errorf("%s: %w", dir, err)
	}
	diff := j.cfg.Identity(j.size()).Diff(s.Identity)
	if mine := j.fingerprint(); mine != s.Data {
		diff = append(diff, fmt.Sprintf("the training data's content: fingerprint %s in the checkpoint, now %s", s.Data, mine))
	}
	if len(diff) > 0 {
		return r, fmt.Errorf("%s was written by another job; give its settings, or start anew without --resume:\n  %s",
			dir, strings.Join(append(diff, j.sameBatch(*s)...), "\n  "))
	}
	params := j.model.Params()
	if r.order, err = paramOrder(params, s.Order); err != nil {
		return r, fmt.Errorf("%s: %w", dir, err)
	}
	if !slices.Equal(tensorOrder(params, r.order), s.Order) {
		j.say("the checkpoint was written by a version of gorun that merged other projections: results agree up to rounding")
	}
	return r, nil
}

// restore reads a checkpoint's tensors.
func (j *job) restore(s recorded) error {
	files, _ := j.keeper.Contents()
	for _, f := range files {
		if err := f.read(s.Checkpoint); err != nil {
			return err
		}
	}
	if j.gpuOps != nil && len(s.Products) > 0 {
		taken, err := j.gpuOps.Products().Adopt(s.Products)
		if err != nil {
			return fmt.Errorf("%s: the algorithms of its matrix products: %w", s.Dir, err)
		}
		if taken < len(s.Products) {
			j.say("%d of the checkpoint's %d algorithms for matrix products are not for this GPU and cuBLASLt: results agree up to rounding", len(s.Products)-taken, len(s.Products))
		}
	}
	j.done, j.optim.applied = s.state.Step, s.Applied
	was, now := cmp.Or(s.Strategy, "ddp"), j.cfg.Parallel.Strategy
	if s.Backend != j.backend || s.World != j.size() || was != now {
		j.say("the checkpoint was written by %d ranks with %s and %s, now %d ranks with %s and %s: results agree up to rounding",
			s.World, was, s.Backend, j.size(), now, j.backend)
	}
	return nil
}

// sameBatch says, in a line or none, how this number of ranks makes the global
// batch of the checkpoint.
func (j *job) sameBatch(s state) []string {
	i := slices.IndexFunc(s.Identity, func(x config.Setting) bool { return x.Key == "global_batch" })
	if i < 0 {
		return nil
	}
	want, err := strconv.Atoi(s.Identity[i].Value)
	micro := j.size() * j.cfg.Train.MicroBatch // sequences of a micro-step over all ranks
	switch {
	case err != nil || want == j.share().Batch() || want%j.size() != 0:
		return nil
	case want%micro == 0:
		return []string{fmt.Sprintf("(%d ranks make the same global batch with --set train.grad_accum=%d)", j.size(), want/micro)}
	}
	return []string{fmt.Sprintf("(%d ranks make the same global batch with --set train.micro_batch=%d --set train.grad_accum=1)", j.size(), want/j.size())}
}
