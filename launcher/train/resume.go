package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// resumeFrom is the folder of the checkpoint to go on from, "" for none. Rank 0
// looks, and tells the others: folders may change while the ranks start. Then each rank
// verifies its share of the files.
func (j *job) resumeFrom(ctx context.Context) (string, error) {
	want := j.cfg.Checkpoint.Resume
	if want == "none" && !restarted() {
		return "", nil
	}
	const what = "looking for a checkpoint"
	found, failed, err := j.together(ctx, what, j.onRank0(func(p *part) ([]byte, error) {
		if restarted() && j.begun() {
			want = "auto"
		}
		dir, err := j.choose(want, p)
		return []byte(dir), err
	}))
	if err := cmp.Or(err, failed); err != nil {
		return "", err
	}
	dir := string(found[0])
	if dir == "" {
		return "", nil
	}
	_, failed, err = j.together(ctx, "reading "+dir, func(_ context.Context, p *part) ([]byte, error) { return nil, j.verify(dir, p) })
	if err != nil || failed == nil {
		return dir, err
	}
	offers, _, err := j.together(ctx, what, j.onRank0(func(p *part) ([]byte, error) { return []byte(j.offer(dir, p)), nil }))
	if err != nil {
		return "", err
	}
	return "", fmt.Errorf("%w; %s", failed, offers[0])
}

// onRank0 is a part that rank 0 alone has something to do in.
func (j *job) onRank0(f func(p *part) ([]byte, error)) func(context.Context, *part) ([]byte, error) {
	return func(_ context.Context, p *part) ([]byte, error) {
		if j.rank() != 0 {
			return nil, nil
		}
		return f(p)
	}
}

// verify reads this rank's share of a checkpoint's files.
func (j *job) verify(dir string, p *part) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && j.rank() != 0 {
		return fmt.Errorf("this host does not see the checkpoint %s: checkpoints need an output folder that all hosts share", dir)
	}
	c, err := checkpoint.Inspect(dir)
	if err != nil {
		return err
	}
	return c.Verify(c.Share(j.rank(), j.size()), p.count)
}

// restarted says that the launcher has started the job's workers before, which
// failed.
func restarted() bool {
	n := os.Getenv("TORCHELASTIC_RESTART_COUNT")
	return n != "" && n != "0"
}

// choose finds the checkpoint that checkpoint.resume means, and looks at its manifest.
func (j *job) choose(want string, p *part) (string, error) {
	if want == "none" {
		return "", nil
	}
	if want == "auto" {
		refs, err := checkpoint.List(j.checkpoints())
		if err != nil {
			return "", err
		}
		if len(refs) == 0 {
			j.say("there is no checkpoint in %s to go on from: the training starts anew", j.checkpoints())
			return "", nil
		}
		want = refs[len(refs)-1].Dir
	}
	if _, err := checkpoint.Inspect(want); err != nil {
		return "", fmt.Errorf("%w; %s", err, j.offer(want, p))
	}
	return want, nil
}

// offer says which complete checkpoint there is in place of a damaged one: the newest
// in the folders where one may be.
func (j *job) offer(dir string, p *part) string {
	for _, root := range []string{filepath.Join(dir, "checkpoints"), filepath.Dir(filepath.Clean(dir))} {
		if newest, _, err := checkpoint.Newest(root, p.count); err == nil {
			return fmt.Sprintf("the newest complete one is of step %d: go on from it with --set checkpoint.resume=%s", newest.Step, newest.Dir)
		}
	}
	return "there is no complete checkpoint beside it to go on from"
}

// recorded is a checkpoint whose tensors are not read yet.
type recorded struct {
	*checkpoint.Checkpoint
	state
	order []string // of gradients, by the model's parameters
}

// recorded reads what the checkpoint in dir, which is verified, says of its
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
	if line := s.otherBase(j.base); line != "" {
		diff = append(diff, line)
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
