package train

import (
	"math"

	"github.com/gorun-dev/gorun/launcher/config"
)

// learningRate is the rate of step (counted from 0) out of total: a straight
// rise over the warm-up steps that reaches lr at step warmup, then lr
// (constant), a straight fall (linear) or half a cosine (cosine) down to
// min_lr_ratio*lr at step total. It depends on nothing else, so a resumed run
// goes on with the same rates.
func learningRate(c config.Train, step, total int) float64 {
	if step < c.WarmupSteps {
		return c.LR * float64(step+1) / float64(c.WarmupSteps+1)
	}
	low := c.LR * c.MinLRRatio
	done := 1.0
	if total > c.WarmupSteps {
		done = min(float64(step-c.WarmupSteps)/float64(total-c.WarmupSteps), 1)
	}
	switch c.Schedule {
	case "linear":
		return c.LR + (low-c.LR)*done
	case "cosine":
		return low + (c.LR-low)*(1+math.Cos(math.Pi*done))/2
	default:
		return c.LR
	}
}
