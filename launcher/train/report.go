package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
	"github.com/gorun-dev/gorun/runtime/cuda"
)

// made is a step that is done and not yet reported: the ranks have not exchanged what
// it cost.
type made struct {
	step        int
	stepped     stepped
	targets, lr float64
	sent        int64
	skipped     bool
	end         time.Time
}

// conclude exchanges what the last step cost, where that has not been done, and
// reports it.
func (j *job) conclude(ctx context.Context, finished bool) error {
	m := j.made
	if m == nil {
		return nil
	}
	j.made = nil
	all, err := j.tell(ctx, m.stepped.loss, m.stepped.times)
	if err != nil {
		return fmt.Errorf("step %d: %w", m.step, err)
	}
	t := all.slowest
	r := stepRecord{
		Step: m.step, Loss: status.Float(m.stepped.lossSum / m.targets), LR: status.Float(m.lr), GradNorm: status.Float(m.stepped.norm),
		TokensPerS: status.Float(m.targets / (t.step / 1e3)), StepMS: t.step, ForwardMS: t.forward, BackwardMS: t.backward,
		ExposedMS: t.exposed, OptimMS: t.optim, DataMS: t.data, CommBytes: m.sent, MemBytes: int64(all.memory), Skipped: m.skipped,
	}
	r.MFU = j.mfu(t.step / 1e3)
	if j.size() > 1 {
		r.SlowestRank, r.SlowestByMS = &all.laggard.rank, all.laggard.by
	}
	r.savings = savingsOf(m.stepped.compressed)
	j.totals.add(r, int64(m.targets), all.mean)
	j.totals.compressed.add(m.stepped.compressed)
	j.totals.slow.add(j.size(), all.laggard)
	if m.skipped {
		j.sayWhy(m.step, all.notFinite)
	}
	return j.report(ctx, r, finished)
}

// mfu is the share of the GPUs' peak that a step of so many seconds made use of; 0 on
// the CPU, and where the peak is unknown.
func (j *job) mfu(seconds float64) float64 {
	if j.gpu == nil {
		return 0
	}
	peak, ok := cuda.PeakBF16(j.gpu.Name())
	if !ok {
		return 0
	}
	return j.utilisation(peak, seconds)
}

// utilisation is the same for GPUs of a known peak.
func (j *job) utilisation(peak, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	tokens := float64(j.share().Batch() * j.cfg.Data.SeqLen)
	return j.arch.flops * tokens / (seconds * peak * float64(j.size()))
}

// told is what all ranks know of a step behind it.
type told struct {
	mean, slowest times
	laggard       laggard
	memory        float64 // the most that a rank has held, in bytes
	notFinite     int     // a rank whose loss is not, or -1
}

// tell exchanges what this rank knows of a step: its loss and times.
func (j *job) tell(ctx context.Context, loss float64, t times) (told, error) {
	var notFinite float64
	if !ddp.Finite(loss) {
		notFinite = float64(1 + j.rank())
	}
	sums := t.values()
	maxima := append([]float64{j.peakMemory(), notFinite, tagged(t.work(), j.rank())}, t.values()...)
	err := j.exchange(ctx, sums, maxima)
	mean := timesOf(sums).over(j.size())
	return told{
		mean: mean, slowest: timesOf(maxima[3:]), laggard: laggardOf(maxima[2], mean.work(), j.size()),
		memory: maxima[0], notFinite: int(maxima[1]) - 1,
	}, err
}

// sayWhy tells why a step was skipped. Rank bad's loss was not finite; -1: none.
func (j *job) sayWhy(step, bad int) {
	if bad >= 0 {
		j.say("step %d is skipped on all ranks: the loss of rank %d on %s is NaN or infinite", step, bad, j.group.Host(bad))
	} else {
		j.say("step %d is skipped on all ranks: the losses are finite, the gradients are not", step)
	}
}

func (j *job) openMetrics() (err error) {
	if j.rank() != 0 {
		return nil
	}
	if j.metrics, err = openMetrics(j.path("metrics.jsonl"), j.done); err != nil {
		return err
	}
	j.onClose(j.metrics.close)
	return j.openWatchers()
}

// report writes the step's lines, evaluates and samples where it is time: every
// so many steps, and behind the job's last one.
func (j *job) report(ctx context.Context, r stepRecord, finished bool) error {
	due := func(every int) bool { return every > 0 && (finished || r.Step%every == 0) }
	logged := due(j.cfg.Log.Every)
	if logged {
		if err := j.record(r); err != nil {
			return err
		}
	}
	var val *status.Float
	if j.eval != nil && due(j.cfg.Eval.Every) {
		if err := j.evaluateAt(ctx, r.Step); err != nil {
			return err
		}
		val = &j.evals.Last.Loss
		if !finished && j.stale() { // this was the last step, as it turns out
			if finished = true; !logged {
				if err := j.record(r); err != nil {
					return err
				}
			}
		}
	}
	if j.rank() == 0 && (logged || val != nil) {
		perStep := time.Duration(j.totals.mean().step * float64(time.Millisecond))
		if err := j.out.Progress(progress(r, j.total, perStep*time.Duration(j.total-r.Step), val)); err != nil {
			return err
		}
	}
	// In stage 3 rank 0 has the weights only together with the others: all make the same text.
	if due(j.cfg.Sample.Every) && (j.rank() == 0 || stage(j.cfg.Parallel) == 3) {
		return j.sample(ctx, r.Step)
	}
	return nil
}

// record writes a step's line.
func (j *job) record(r stepRecord) error {
	if j.rank() != 0 {
		return nil
	}
	if err := errors.Join(j.metrics.write(r), j.watch(r.Step, r.watched()...)); err != nil {
		return fmt.Errorf("the metrics: %w", err)
	}
	return nil
}

// say tells the user something, once for all ranks. That nobody listens is not a
// reason to stop training.
func (j *job) say(format string, args ...any) {
	if j.rank() == 0 {
		_ = j.out.Message(format, args...)
	}
}

// end writes the summary of a run whose last step is saved.
func (j *job) end(ctx context.Context, moved checkpoint.Moved) error {
	if j.rank() != 0 {
		return nil
	}
	last := j.checkpointPath(j.done)
	r := j.totals.end(j.done, last, j.early)
	r.EndedEarly, r.images = j.ended, j.cfg.Data.Images()
	if e := j.evals.Last; e != nil && e.Step > j.first {
		r.ValLoss, r.Perplexity, r.Accuracy = &e.Loss, new(status.Float(math.Exp(float64(e.Loss)))), e.Accuracy
	}
	from, best, err := j.result(moved)
	if err != nil {
		return err
	}
	if best != "" {
		r.Best = from
	}
	r.MFU = j.mfu(r.StepMS / 1e3)
	if err := j.metrics.write(r); err != nil {
		return fmt.Errorf("the metrics: %w", err)
	}
	plot := j.path("loss.png")
	if !j.cfg.Log.Plot {
		plot = ""
	} else if err := j.plotLoss(plot); err != nil {
		j.say("the loss could not be drawn: %v", err) // no reason to fail: the figures are there
	}
	if err := j.export(ctx, moved, from); err != nil {
		return err
	}
	files := [][2]string{{"metrics", j.path("metrics.jsonl")}}
	for _, f := range [][2]string{{"plot", plot}, {"checkpoint", last}, {"export", j.path("export")}, {"samples", j.path("samples")}, {"trace", j.path("trace.json")}} {
		if exists(f[1]) {
			files = append(files, f)
		}
		if f[0] == "checkpoint" && best != "" {
			files = append(files, [2]string{"best", best})
		}
	}
	if j.early != "" && j.cfg.Checkpoint.Final {
		files = append(files, [2]string{"to go on", "the same command with --resume"})
	}
	return j.out.Summary(r.lines(j.totals.mean().other(), j.totals.slow.line(r.StepMS, j.group.Host), j.totals.saves.line(), files)...)
}

func progress(r stepRecord, total int, eta time.Duration, val *status.Float) status.Progress {
	return status.Progress{
		Step: r.Step, Total: total, Loss: r.Loss, ValLoss: val, LR: r.LR, GradNorm: r.GradNorm, TokensPerS: r.TokensPerS,
		ETA: status.Float(eta.Seconds()),
	}
}
