package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// saving is a checkpoint on its way. It goes through stages, each of which all ranks
// do at once and beside the training (see part); from one to the next they go
// together: in the exchange of a step, or in settle.
//
//	beginning    rank 0 makes the draft
//	writing      each rank writes its files into it
//	publishing   rank 0 writes the index, publishes, and removes older checkpoints
//	discarding   where any of that failed: rank 0 removes the draft
type saving struct {
	*part // this rank's, of the stage under way
	stage saveStage
	step  int
	last  bool // the job ends with it
	aside bool // steps are made beside it
	root  string
	meta  state
	files []file

	draft   *checkpoint.Draft // rank 0's
	reports []report          // of all ranks, once they have written
	begun   time.Time
	stood   time.Duration // how long training stood still for it, where steps are made beside it
	took    time.Duration // until it was published; rank 0 knows
	worked  time.Duration // of that, how long rank 0 was at work beside writing its files
	pruning error         // why older ones could not be removed
	failed  error         // why there is no such checkpoint
}

type saveStage int

const (
	beginning saveStage = iota
	writing
	publishing
	discarding
)

// save makes a checkpoint of the current step. Every rank calls it. With
// checkpoint.async it returns when what is to be saved is copied, and the checkpoint
// becomes complete beside the next steps. The last one is waited for. That one which is
// not the last fails is told, and no error.
func (j *job) save(ctx context.Context, last bool) error {
	s := &saving{step: j.done, last: last, aside: j.copies() && !last, begun: time.Now()}
	if before := j.saving; before != nil {
		if err := j.settle(ctx); err != nil {
			return err
		}
		if waited := time.Since(s.begun); waited > time.Second {
			j.say("training waited %.1f s for the checkpoint of step %d: saves take longer than the steps between them (checkpoint.every)",
				waited.Seconds(), before.step)
		}
	}
	s.root, s.meta, s.files = j.checkpoints(), j.state(), j.contents()
	s.part = j.beside(s.name(), func(context.Context, *part) ([]byte, error) { return s.begin(j.rank()) })
	j.saving = s
	if s.aside {
		if err := j.snapshot(ctx, s.files); err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		s.stood = time.Since(s.begun)
		reached(j.rank(), s.step, "copied")
		return nil
	}
	if err := j.settle(ctx); err != nil {
		return err
	}
	if last && s.failed != nil {
		return fmt.Errorf("the checkpoint of step %d could not be written, %s: %w", s.step, j.fallback(), s.failed)
	}
	return nil
}

func (s *saving) name() string { return fmt.Sprintf("the checkpoint of step %d", s.step) }

// settle waits until no checkpoint is on its way.
func (j *job) settle(ctx context.Context) error {
	for j.saving != nil {
		if err := j.await(ctx, j.saving.part); err != nil {
			return err
		}
		if err := j.proceed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// proceed takes the checkpoint on its way to its next stage, or ends it, where all
// ranks are done with this one. Every rank calls it at once.
func (j *job) proceed(ctx context.Context) error {
	s := j.saving
	results, failed, err := j.gather(ctx, s.part)
	if err != nil {
		return err
	}
	over := s.stage == publishing || s.stage == discarding
	switch {
	case failed != nil && s.stage == discarding:
		s.failed = errors.Join(s.failed, failed)
	case failed != nil:
		s.failed, s.stage, over = failed, discarding, false
		s.part = j.beside(s.name(), func(context.Context, *part) ([]byte, error) { return nil, s.discard() })
	case s.stage == beginning:
		s.stage = writing
		s.part = j.beside(s.name(), func(ctx context.Context, p *part) ([]byte, error) { return j.writeShare(ctx, p, s, string(results[0])) })
	case s.stage == writing:
		s.stage = publishing
		s.part = j.beside(s.name(), func(_ context.Context, p *part) ([]byte, error) { return nil, j.publish(p, s, results) })
	}
	if !over {
		return nil
	}
	j.saving = nil
	return j.saved(s)
}

// saved tells what became of a checkpoint.
func (j *job) saved(s *saving) error {
	if s.failed != nil {
		j.evals.forget(s.step)
		if !s.last {
			j.say("the checkpoint of step %d could not be written, training goes on: %v", s.step, s.failed)
		}
		return nil
	}
	if j.rank() != 0 {
		return nil
	}
	if s.pruning != nil {
		j.say("older checkpoints could not be removed: %v", s.pruning)
	}
	r := s.record()
	j.totals.saves.add(r)
	j.say("%s", r)
	if j.metrics == nil {
		return nil // no step was made yet
	}
	if err := j.metrics.write(r); err != nil {
		return fmt.Errorf("the metrics: %w", err)
	}
	return nil
}

// record is what a checkpoint has cost.
func (s *saving) record() saveRecord {
	r := saveRecord{Event: "checkpoint", Step: s.step, Ranks: len(s.reports), Seconds: s.took.Seconds()}
	var stood, wrote time.Duration
	for _, x := range s.reports {
		for _, f := range x.Files {
			r.Bytes += f.Size
		}
		stood, wrote = max(stood, x.Stood), max(wrote, x.Wrote)
	}
	if !s.aside {
		stood = s.took
	}
	r.StallMS, r.WriteS = milliseconds(stood), (wrote + s.worked).Seconds()
	r.BytesPerS = float64(r.Bytes) / max(r.WriteS, 1e-9)
	return r
}

// abandon ends what is on its way when the job ends without it.
func (j *job) abandon() error {
	s := j.saving
	if s == nil {
		return nil
	}
	j.saving = nil
	s.cancel()
	const patience = 10 * time.Second
	select {
	case <-s.done:
		return s.discard()
	case <-time.After(patience):
		return fmt.Errorf("%s: writing has not ended within %s: the disk does not answer", s.name(), patience)
	}
}
