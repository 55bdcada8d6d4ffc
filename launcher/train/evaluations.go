package train

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/launcher/status"
	"github.com/gorun-dev/gorun/runtime/checkpoint"
)

// evaluations are what a job remembers of its evaluations, the same on all ranks. A
// checkpoint keeps what there was by its step, so that a resumed run stops where the
// whole one would, and that which checkpoint is best stands in the checkpoints.
type evaluations struct {
	// Data names what was evaluated on: losses on other data do not compare.
	Data string     `json:"data,omitempty"`
	Last *evaluated `json:"last,omitempty"`
	// Best is the lowest loss of a step that can have a checkpoint.
	Best *evaluated `json:"best,omitempty"`
	// Mark is the last improvement in the sense of eval.min_delta, and Stale how many
	// evaluations came since.
	Mark  *evaluated `json:"mark,omitempty"`
	Stale int        `json:"stale,omitempty"`
}

// evaluated is the loss behind a step, in nats a target. It does not change.
type evaluated struct {
	Step int          `json:"step"`
	Loss status.Float `json:"loss"`
	// Accuracy is the share of the images that are told right; nil of other data.
	Accuracy *status.Float `json:"accuracy,omitempty"`
}

func (e evaluated) String() string { return fmt.Sprintf("%.4f of step %d", float64(e.Loss), e.Step) }

// add takes up a new evaluation. A loss that is NaN is lower than none.
func (e *evaluations) add(x evaluated, minDelta float64) {
	e.Last = &x
	lower := func(than *evaluated, by float64) bool {
		return than == nil && !math.IsNaN(float64(x.Loss)) || than != nil && float64(than.Loss-x.Loss) > by
	}
	if x.Step > 0 && lower(e.Best, 0) {
		e.Best = &x
	}
	e.Stale++
	if lower(e.Mark, minDelta) {
		e.Mark, e.Stale = &x, 0
	}
}

// forget takes back that a step is the best: it has no checkpoint. The next evaluation
// that is better than the ones before will have.
func (e *evaluations) forget(step int) {
	if e.Best != nil && e.Best.Step == step {
		e.Best = nil
	}
}

// stale says that eval.patience is at its end.
func (j *job) stale() bool { return j.cfg.Eval.Patience > 0 && j.evals.Stale >= j.cfg.Eval.Patience }

// staleness says why.
func (j *job) staleness() string {
	since := "no evaluation gave a number"
	if m := j.evals.Mark; m != nil {
		since = fmt.Sprintf("no evaluation since has improved on the loss %s", m)
	}
	return fmt.Sprintf("%s, eval.patience is %d", since, j.cfg.Eval.Patience)
}

// evaluatedOn names the evaluation's data and length.
func (j *job) evaluatedOn() string {
	if j.eval == nil {
		return ""
	}
	return fmt.Sprintf("%016x, %d sequences", j.data.Eval.Info().Fingerprint, j.eval.Len())
}

// evaluateAt evaluates behind a step, tells the result and writes it down.
func (j *job) evaluateAt(ctx context.Context, step int) error {
	v, accuracy, err := j.evaluate(ctx)
	if err != nil {
		return fmt.Errorf("evaluation after step %d: %w", step, err)
	}
	result := evaluated{Step: step, Loss: status.Float(v)}
	figures := fmt.Sprintf("loss %.4f nats a token, perplexity %.2f", v, math.Exp(v))
	if !math.IsNaN(accuracy) {
		result.Accuracy = new(status.Float(accuracy))
		figures = fmt.Sprintf("loss %.4f nats an image, %.2f %% of the images right", v, 100*accuracy)
	}
	j.evals.add(result, j.cfg.Eval.MinDelta)
	if j.rank() != 0 {
		return nil
	}
	e := evalRecord{Step: step, ValLoss: status.Float(v), Perplexity: status.Float(math.Exp(v)), Accuracy: result.Accuracy}
	if err := errors.Join(j.metrics.write(e), j.watch(e.Step, e.watched()...)); err != nil {
		return fmt.Errorf("the metrics: %w", err)
	}
	j.say("evaluation after step %d: %s%s", step, figures, j.evals.verdict(j.cfg.Eval.Patience))
	return nil
}

// verdict compares the last evaluation with those before it.
func (e *evaluations) verdict(patience int) string {
	switch {
	case e.Best != nil && e.Best.Step == e.Last.Step:
		return ", the best so far"
	case e.Best == nil || e.Last.Step == 0:
		return ""
	case patience == 0:
		return fmt.Sprintf("; the best is %s", e.Best)
	}
	return fmt.Sprintf("; the best is %s, without improvement %d of the %d that eval.patience allows", e.Best, e.Stale, patience)
}

// recall takes up the evaluations of the checkpoint that the job goes on from. Best is
// forgotten where there is no such checkpoint in this output folder: rank 0 looks.
func (j *job) recall(ctx context.Context, saved evaluations) error {
	on := j.evaluatedOn()
	if saved.Data != on && saved.Data != "" && on != "" {
		j.say("the evaluation is not the checkpoint's, so that losses do not compare: the best one is sought anew, and eval.patience begins anew")
	}
	if saved.Data != on {
		saved = evaluations{Data: on}
	}
	if saved.Best != nil {
		lost := []float64{0}
		if j.rank() == 0 {
			if _, err := checkpoint.Inspect(j.checkpointPath(saved.Best.Step)); err != nil {
				lost[0] = 1
			}
		}
		if err := j.exchange(ctx, lost, nil); err != nil {
			return err
		}
		if lost[0] > 0 {
			saved.Best = nil
		}
	}
	j.evals = saved
	return nil
}
