package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/gorun-dev/gorun/runtime/param"
)

// sameReplicas makes sure that all ranks hold the same weights, and the same masters
// where the weights are rounded from them: those can differ for long before a weight
// does. Moments that differ show in the masters after a step.
func (j *job) sameReplicas(ctx context.Context) error {
	params := j.model.Params()
	if err := j.sink.CheckReplicas(ctx, params, j.weights.Weight); err != nil {
		return err
	}
	if !slices.ContainsFunc(params, func(p *param.Param) bool { return !j.optim.slots[p].Master.None() }) {
		return nil
	}
	if err := j.sink.CheckReplicas(ctx, params, j.optim.master); err != nil {
		return fmt.Errorf("the f32 masters of the weights: %w", err)
	}
	return nil
}
