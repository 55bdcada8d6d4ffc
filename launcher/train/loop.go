package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorun-dev/gorun/launcher/status"
)

// train makes the steps from j.done to j.total. When ctx ends on any rank, all
// ranks stop behind the same step and save.
func (j *job) train(ctx context.Context) error {
	if j.done >= j.total {
		j.say("nothing to do: the checkpoint is of step %d of %d. To train on, give a larger train.max_steps or train.epochs (the schedule of the learning rate stretches with it)",
			j.done, j.total)
		return nil
	}
	if j.stale() {
		j.say("nothing to do: training ended early at step %d of %d: %s. To train on, give a larger eval.patience, or 0", j.done, j.total, j.staleness())
		return nil
	}
	if err := j.openMetrics(); err != nil {
		return err
	}
	// What has begun is ended in order: a wait is bounded by the deadlines of the
	// collectives, not by the signal that asks to stop.
	work := context.WithoutCancel(ctx)
	j.first, j.counted = j.done, j.reducer.Sent()
	if err := j.firstTargets(work); err != nil {
		return err
	}
	if j.cfg.Eval.AtStart && j.done == 0 {
		if err := j.evaluateAt(work, 0); err != nil {
			return err
		}
	}
	j.totals.started = time.Now()
	defer context.AfterFunc(ctx, func() { j.sayStop(context.Cause(ctx)) })()
	bad := 0 // steps skipped in a row
	for last := false; !last; {
		skipped, stop, err := j.advance(work, ctx)
		if err != nil {
			return err
		}
		if bad++; !skipped {
			bad = 0
		}
		// A signal ends the run and not the job: what else it reports is what it
		// would have without the signal, and the checkpoint is not kept waiting.
		finished := j.done == j.total
		if stop && !finished {
			j.early = "another rank was asked to"
			if ctx.Err() != nil {
				j.early = context.Cause(ctx).Error()
			}
		}
		last = stop || finished
		if j.gpu == nil || skipped || last || j.pauses() {
			if err := j.conclude(work, finished); err != nil {
				return err
			}
		}
		if !finished && j.stale() {
			last, j.early, j.ended = true, "", j.staleness()
		}
		if bad >= j.cfg.Train.SkipNonfinite {
			err := fmt.Errorf("step %d: the loss or the gradients were NaN or infinite in %d steps in a row (train.skip_nonfinite); the weights are those of step %d: lower train.lr, or look at the data of these steps, and go on from a checkpoint with --resume",
				j.done, bad, j.done-bad)
			return errors.Join(err, j.settle(work)) // all ranks are here, and there may be a good one on its way
		}
		if err := j.compareReplicas(work); err != nil {
			return err // before the weights get into a checkpoint
		}
		if every := j.cfg.Checkpoint.Every; last && j.cfg.Checkpoint.Final || every > 0 && j.done%every == 0 || j.saveBest() {
			if err := j.save(work, last); err != nil {
				return err
			}
		}
	}
	if err := j.settle(work); err != nil {
		return err
	}
	if err := j.writeTrace(work); err != nil {
		return err
	}
	if j.gpu == nil {
		return j.end(work, nil)
	}
	// The others stay until rank 0 has summed up, however long its disk takes: a group of
	// GPUs ends together.
	_, failed, err := j.together(work, "the end of the job", j.onRank0(func(p *part) ([]byte, error) { return nil, j.end(work, p.count) }))
	return cmp.Or(err, failed)
}

// sayStop tells the user that a signal has come. Where that is because of another rank,
// it promises nothing: this step may not end.
func (j *job) sayStop(cause error) {
	_, failed := errors.AsType[*status.StopError](cause)
	switch {
	case failed:
		j.say("%v; stopping", cause)
	case j.cfg.Checkpoint.Final:
		j.say("asked to stop: this step ends and a checkpoint is saved; a second Ctrl-C ends the job without one")
	default:
		j.say("asked to stop: this step ends, and no checkpoint is saved (checkpoint.final is false)")
	}
}

// firstTargets counts the targets of the first step over all ranks; those of
// later ones travel with the losses.
func (j *job) firstTargets(ctx context.Context) error {
	n, err := j.loader.Step(ctx, j.done)
	if err != nil {
		return err
	}
	sums := []float64{float64(n)}
	err = j.exchange(ctx, sums, nil)
	j.targets = sums[0]
	return err
}

// pauses says that something comes behind the step that was just made, for which the
// devices stand still.
func (j *job) pauses() bool {
	due := func(every int) bool { return every > 0 && j.done%every == 0 }
	return due(j.cfg.Checkpoint.Every) || due(j.cfg.Parallel.CheckReplicas) || due(j.cfg.Sample.Every) || j.eval != nil && due(j.cfg.Eval.Every)
}

// advance makes the next step and exchanges what all ranks must know before the one
// after it. stop says that asked has ended on some rank.
//
// While a GPU computes, its host reports the step before, reads the data of the next,
// and exchanges what it counts: between two steps no host keeps its GPU waiting.
func (j *job) advance(ctx, asked context.Context) (skipped, stop bool, err error) {
	if n := j.cfg.Log.Trace; n > 0 {
		// The first step of a run is like no other: memory is touched for the first time.
		on := j.done-j.first >= 1 && j.done-j.first <= n
		if t := j.gpuTrace; t != nil && on && !j.tracer.Enabled() {
			if err := t.begin(ctx, j.compute); err != nil {
				return false, false, err
			}
		}
		j.tracer.Enable(on)
	}
	if j.targets == 0 {
		return false, false, fmt.Errorf("step %d: no token of the global batch counts as a target", j.done+1)
	}
	targets, begin := j.targets, time.Now()
	if j.made != nil {
		begin = j.made.end // nothing but this step has come behind that one
	}
	lr := j.course.at(j.done)
	var reading span
	s, err := j.step(ctx, targets, lr, func() error {
		if err := j.conclude(ctx, false); err != nil {
			return err
		}
		next := 0
		if j.done+1 < j.total {
			reading.from = time.Now()
			if next, err = j.loader.Step(ctx, j.done+1); err != nil {
				return err
			}
			reading.to = time.Now()
		}
		sums, maxima := []float64{float64(next)}, []float64{0, 0}
		if asked.Err() != nil {
			maxima[0] = 1
		}
		if j.saving != nil {
			maxima[1] = j.saving.pending()
		}
		if err := j.exchange(ctx, sums, maxima); err != nil {
			return err
		}
		j.targets, stop = sums[0], maxima[0] > 0
		if j.saving != nil && maxima[1] == 0 {
			return j.proceed(ctx)
		}
		return nil
	})
	if err != nil {
		return false, false, fmt.Errorf("step %d: %w", j.done+1, err)
	}
	j.done++
	now := time.Now()
	s.times.data, s.times.step = milliseconds(reading.behind(s.ended)), milliseconds(now.Sub(begin))
	skipped = j.optim.finish(s.coef)
	sent := j.reducer.Sent()
	j.made = &made{step: j.done, stepped: s, targets: targets, lr: lr, sent: sent - j.counted, skipped: skipped, end: now}
	j.counted = sent
	return skipped, stop, nil
}

// compareReplicas makes sure, where it is time, that all ranks still hold the
// same weights.
func (j *job) compareReplicas(ctx context.Context) error {
	if every := j.cfg.Parallel.CheckReplicas; every == 0 || j.done%every != 0 {
		return nil
	}
	if err := j.keeper.Compare(ctx); err != nil {
		return fmt.Errorf("after step %d: %w", j.done, err)
	}
	return nil
}
