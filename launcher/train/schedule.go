package train

import (
	"fmt"
	"math"

	"github.com/gorun-dev/gorun/launcher/config"
)

// course is that of the learning rate over a whole job: a pure function of the step,
// so that a resumed run, on however many ranks, goes on with the same rates.
//
// The formulas are those of transformers' get_scheduler, but for the warm-up: there the
// first step has a rate of 0 and changes nothing. config.Train's doc has them all.
type course struct {
	config.Train
	warmup, decay, total int // steps; decay is of warmup_stable_decay
}

// newCourse is the course of a job of total steps, at least 1.
func newCourse(c config.Train, total int) (course, error) {
	x := course{Train: c, warmup: c.WarmupSteps, decay: c.DecaySteps, total: total}
	if c.WarmupRatio > 0 {
		x.warmup = portion(c.WarmupRatio, total)
	}
	if x.warmup > total {
		return x, fmt.Errorf("train.warmup_steps is %d, and the job has %d steps: lower it, or train longer", x.warmup, total)
	}
	if c.Schedule != "warmup_stable_decay" {
		return x, nil
	}
	if x.decay == 0 {
		x.decay = min(portion(0.1, total), total-x.warmup)
	}
	if n := x.warmup + x.decay; n > total {
		return x, fmt.Errorf("a warm-up of %d steps and train.decay_steps = %d are %d, and the job has %d steps: lower one of them, or train longer",
			x.warmup, x.decay, n, total)
	}
	return x, nil
}

// String is the course for people to read.
func (x course) String() string {
	text := fmt.Sprintf("%g", x.LR)
	if x.warmup > 0 {
		text += fmt.Sprintf(" behind a warm-up of %d steps", x.warmup)
	}
	if x.Schedule == "warmup_stable_decay" {
		return text + fmt.Sprintf(", a fall in the last %d steps (warmup_stable_decay), %.3g in the last one", x.decay, x.at(x.total-1))
	}
	return text + fmt.Sprintf(", %s, %.3g in the last step", x.Schedule, x.at(x.total-1))
}

// at is the rate of a step, counted from 0. Steps behind the last have its end's.
func (x course) at(step int) float64 {
	if step < x.warmup {
		return x.LR * float64(step+1) / float64(x.warmup+1)
	}
	low := x.LR * x.MinLRRatio
	return low + (x.LR-low)*x.shape(step)
}

// shape is where between the lowest rate, 0, and the peak, 1, a step behind the
// warm-up is.
func (x course) shape(step int) float64 {
	p := progressOf(step-x.warmup, x.total-x.warmup)
	switch x.Schedule {
	case "constant":
		return 1
	case "inverse_sqrt":
		w := float64(x.warmup)
		if x.warmup == 0 {
			w = 10_000
		}
		return math.Sqrt(w / (w + float64(step-x.warmup)))
	case "linear":
		return 1 - p
	case "polynomial":
		return math.Pow(1-p, x.Power)
	case "cosine_with_restarts":
		if p == 1 {
			return 0 // and not the beginning of one more cycle
		}
		_, within := math.Modf(p * float64(x.Cycles))
		return halfCosine(within)
	case "warmup_stable_decay":
		p = progressOf(step-(x.total-x.decay), x.decay)
		switch x.DecayShape {
		case "linear":
			return 1 - p
		case "1-sqrt":
			return 1 - math.Sqrt(p)
		}
		return halfCosine(p)
	}
	return halfCosine(p) // cosine
}

// progressOf is done of n, from 0 to 1.
func progressOf(done, n int) float64 {
	if done >= n {
		return 1
	}
	return max(float64(done)/float64(n), 0)
}

// halfCosine falls from 1 at 0 to 0 at 1.
func halfCosine(p float64) float64 { return (1 + math.Cos(math.Pi*p)) / 2 }

// portion is a share of n, rounded up.
func portion(share float64, n int) int {
	x := share * float64(n)
	// 7 % of 100 are 7, though the product in binary is a little above.
	if whole := math.Round(x); math.Abs(x-whole) <= 1e-12*x {
		return int(whole)
	}
	return int(math.Ceil(x))
}
