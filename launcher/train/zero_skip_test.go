package train

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/tensor"
)

// A loss that is not finite, or a gradient, on one rank and in one micro-step makes all
// ranks skip the step in every stage: no weight and no moment changes a bit, the line
// of the step and the summary count it, and the next step goes on.
func TestAShardedStepWithAnythingNotFiniteIsSkipped(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		for name, fault := range map[string]faulty{
			"loss is NaN":          {loss: func(l tensor.Tensor) { l.F64()[0] = math.NaN() }},
			"loss is infinite":     {loss: func(l tensor.Tensor) { l.F64()[0] = math.Inf(1) }},
			"gradient is NaN":      {scale: func(float32) float32 { return float32(math.NaN()) }},
			"gradient is infinite": {scale: func(float32) float32 { return math.MaxFloat32 }},
		} {
			t.Run(fmt.Sprintf("stage %d, %s", stage, name), func(t *testing.T) {
				dir := t.TempDir()
				said, errs := trainChanged(t, 3, func(j *job) {
					f := fault
					f.Model, f.j, f.rank, f.step = j.model, j, 1, 3
					j.model = &f
				}, func(j *job) {
					if j.totals.skipped != 1 {
						t.Errorf("rank %d counts %d skipped steps", j.rank(), j.totals.skipped)
					}
				}, slices.Concat(small, []string{"output=" + dir, "train.micro_batch=2", "train.grad_accum=2", "train.max_steps=4", "eval.every=0",
					"checkpoint.every=1", fmt.Sprint("parallel.strategy=zero", stage)})...)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				for _, r := range readSteps(t, dir) {
					if r.Skipped != (r.Step == 3) {
						t.Errorf("step %d: skipped is %t", r.Step, r.Skipped)
					}
				}
				before, at, behind := weights(t, dir, 2), weights(t, dir, 3), weights(t, dir, 4)
				sameWeights(t, "the skipped step", before, at)
				for name := range at {
					if slices.Equal(at[name], behind[name]) {
						t.Errorf("the step behind it has not changed %s", name)
					}
				}
				want := "step 3 is skipped on all ranks: the losses are finite, the gradients are not"
				if fault.loss != nil {
					want = "step 3 is skipped on all ranks: the loss of rank 1 on "
				}
				if !strings.Contains(said, want) {
					t.Errorf("said %s, want %q", said, want)
				}
			})
		}
	}
}

// A NaN that stays, in the masters of one rank, ends the job on all ranks after as
// many steps as train.skip_nonfinite allows.
func TestANaNThatStaysEndsAShardedJob(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		dir := t.TempDir()
		_, errs := trainChanged(t, 3, func(j *job) {
			if j.rank() == 2 {
				s := j.keeper.(*sharded)
				s.Settle()
				if err := j.compute.Synchronize(t.Context()); err != nil {
					t.Error(err)
				}
				s.Shards()[0].Master.F32()[0] = float32(math.NaN())
			}
			if err := j.keeper.Publish(); err != nil {
				t.Error(err)
			}
		}, nil, slices.Concat(small, []string{"output=" + dir, "train.micro_batch=4", "train.skip_nonfinite=3", fmt.Sprint("parallel.strategy=zero", stage)})...)
		wants(t, errs, "in 3 steps in a row (train.skip_nonfinite)", "the weights are those of step 0")
		got := readSteps(t, dir)
		if len(got) != 3 || slices.ContainsFunc(got, func(r stepRecord) bool { return !r.Skipped }) {
			t.Errorf("stage %d: steps %+v, want three that are skipped", stage, got)
		}
	}
}
