package train

import (
	"math"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
)

// The rates at the ends of each schedule and between, by its formula. The job has a
// warm-up of 4 steps, 100 behind it, a peak of 1.
func TestLearningRate(t *testing.T) {
	for _, c := range []struct {
		schedule string
		set      func(c *config.Train)
		want     map[int]float64
	}{
		{"constant", nil, map[int]float64{0: 0.2, 3: 0.8, 4: 1, 103: 1, 500: 1}},
		{"linear", nil, map[int]float64{0: 0.2, 4: 1, 54: 0.55, 103: 0.1 + 0.009, 104: 0.1, 500: 0.1}},
		{"cosine", nil, map[int]float64{3: 0.8, 4: 1, 54: 0.55, 29: 0.1 + 0.9*(1+math.Sqrt2/2)/2, 104: 0.1, 500: 0.1}},
		// Two cycles of 50 steps.
		{"cosine_with_restarts", func(c *config.Train) { c.Cycles = 2 }, map[int]float64{
			0: 0.2, 4: 1, 29: 0.55, 53: 0.1 + 0.9*(1+math.Cos(math.Pi*0.98))/2, 54: 1, 79: 0.55, 104: 0.1, 500: 0.1}},
		{"polynomial", func(c *config.Train) { c.Power = 1 }, map[int]float64{4: 1, 54: 0.55, 104: 0.1}},
		{"polynomial", func(c *config.Train) { c.Power = 2 }, map[int]float64{4: 1, 54: 0.1 + 0.9/4, 94: 0.1 + 0.9/100, 104: 0.1, 500: 0.1}},
		{"inverse_sqrt", func(c *config.Train) { c.MinLRRatio = 0 }, map[int]float64{0: 0.2, 4: 1, 16: 0.5, 64: 0.25, 104: math.Sqrt(4. / 104)}},
		{"inverse_sqrt", func(c *config.Train) { c.MinLRRatio, c.WarmupSteps = 0, 0 }, map[int]float64{0: 1, 30_000: 0.5}},
		// The fall begins behind step 84.
		{"warmup_stable_decay", func(c *config.Train) { c.DecaySteps = 20 }, map[int]float64{
			0: 0.2, 4: 1, 60: 1, 84: 1, 89: 0.1 + 0.9*(1+math.Sqrt2/2)/2, 94: 0.55, 104: 0.1, 500: 0.1}},
		{"warmup_stable_decay", func(c *config.Train) { c.DecaySteps, c.DecayShape = 20, "linear" }, map[int]float64{84: 1, 89: 0.775, 94: 0.55, 104: 0.1}},
		{"warmup_stable_decay", func(c *config.Train) { c.DecaySteps, c.DecayShape = 20, "1-sqrt" }, map[int]float64{84: 1, 89: 0.55, 104: 0.1}},
		// A tenth of 104 steps are 11.
		{"warmup_stable_decay", func(c *config.Train) { c.DecayShape = "linear" }, map[int]float64{93: 1, 94: 1 - 0.9/11, 104: 0.1}},
		// 5 % of 104 are 6.
		{"linear", func(c *config.Train) { c.WarmupSteps, c.WarmupRatio = 0, 0.05 }, map[int]float64{0: 1. / 7, 5: 6. / 7, 6: 1, 55: 0.55, 104: 0.1}},
		// All is warm-up.
		{"cosine", func(c *config.Train) { c.WarmupSteps = 104 }, map[int]float64{0: 1. / 105, 103: 104. / 105, 104: 0.1}},
	} {
		conf := config.Train{LR: 1, WarmupSteps: 4, MinLRRatio: 0.1, Schedule: c.schedule, Cycles: 1, Power: 1, DecayShape: "cosine"}
		if c.set != nil {
			c.set(&conf)
		}
		x, err := newCourse(conf, 104)
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range c.want {
			if got := x.at(step); !(math.Abs(got-want) <= 1e-12) {
				t.Errorf("%s, %+v: step %d has %v, want %v", c.schedule, conf, step, got, want)
			}
		}
	}
}

// The figures that transformers' get_scheduler has behind the warm-up, for a peak of
// 5e-5, 10 steps of warm-up and 100 in all, at steps 10, 37, 55, 82 and 99; worked out
// by hand from its formulas, to eight digits.
func TestLearningRateIsThatOfTransformers(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(c *config.Train)
		want [5]float64
	}{
		"linear":               {func(c *config.Train) {}, [5]float64{5e-5, 3.5e-5, 2.5e-5, 1e-5, 5.5555556e-7}},
		"cosine":               {func(c *config.Train) {}, [5]float64{5e-5, 3.9694631e-5, 2.5e-5, 4.7745751e-6, 1.5229325e-8}},
		"cosine_with_restarts": {func(c *config.Train) { c.Cycles = 3 }, [5]float64{5e-5, 1.2235871e-6, 2.5e-5, 3.2725425e-5, 1.3695262e-7}},
		"polynomial":           {func(c *config.Train) { c.Power, c.MinLRRatio = 1, 1e-7/5e-5 }, [5]float64{5e-5, 3.503e-5, 2.505e-5, 1.008e-5, 6.5444444e-7}},
		"constant":             {func(c *config.Train) {}, [5]float64{5e-5, 5e-5, 5e-5, 5e-5, 5e-5}},
		"inverse_sqrt":         {func(c *config.Train) {}, [5]float64{5e-5, 2.5993762e-5, 2.1320072e-5, 1.7460757e-5, 1.5891043e-5}},
		"warmup_stable_decay":  {func(c *config.Train) { c.DecaySteps = 20 }, [5]float64{5e-5, 5e-5, 5e-5, 4.8776413e-5, 3.0779149e-7}},
		"cosine at a floor":    {func(c *config.Train) { c.MinLRRatio = 0.1 }, [5]float64{5e-5, 4.0725168e-5, 2.75e-5, 9.2971176e-6, 5.0137064e-6}},
	} {
		schedule, _, _ := strings.Cut(name, " ")
		conf := config.Train{LR: 5e-5, WarmupSteps: 10, Schedule: schedule, Cycles: 1, Power: 1, DecayShape: "cosine"}
		c.set(&conf)
		x, err := newCourse(conf, 100)
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range []int{10, 37, 55, 82, 99} {
			if got, want := x.at(step), c.want[i]; !(math.Abs(got-want) <= 1e-7*want) {
				t.Errorf("%s: step %d has %.8g, want %.8g", name, step, got, want)
			}
		}
	}
}

// The console says how long what is given as a share is.
func TestTheCourseInWords(t *testing.T) {
	for want, c := range map[string]config.Train{
		"0.001 behind a warm-up of 7 steps, linear, 1.08e-05 in the last step":              {WarmupRatio: 0.07, Schedule: "linear"},
		"0.001, constant, 0.001 in the last step":                                           {Schedule: "constant"},
		"0.001, a fall in the last 10 steps (warmup_stable_decay), 0.00019 in the last one": {Schedule: "warmup_stable_decay", DecayShape: "linear", MinLRRatio: 0.1},
		"0.001 behind a warm-up of 9 steps, inverse_sqrt, 0.000302 in the last step":        {WarmupSteps: 9, Schedule: "inverse_sqrt"},
		"0.001 behind a warm-up of 100 steps, cosine, 0.00099 in the last step":             {WarmupSteps: 100, Schedule: "cosine"},
	} {
		c.LR = 1e-3
		if x, err := newCourse(c, 100); err != nil || x.String() != want {
			t.Errorf("%q (%v), want %q", x, err, want)
		}
	}
}

// A schedule that does not fit into the steps that epochs come to is an error.
func TestAScheduleLongerThanTheJob(t *testing.T) {
	for want, c := range map[string]config.Train{
		"train.warmup_steps is 11, and the job has 10 steps":                             {Schedule: "linear", WarmupSteps: 11},
		"a warm-up of 6 steps and train.decay_steps = 5 are 11, and the job has 10 step": {Schedule: "warmup_stable_decay", WarmupSteps: 6, DecaySteps: 5},
	} {
		if _, err := newCourse(c, 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestPortion(t *testing.T) {
	for _, c := range []struct {
		share float64
		n     int
		want  int
	}{{0.07, 100, 7}, {0.071, 100, 8}, {2.5, 7, 18}, {3, 7, 21}, {0.1, 3, 1}, {1e-9, 5, 1}, {1.1, 10, 11}, {0.29, 100, 29}} {
		if got := portion(c.share, c.n); got != c.want {
			t.Errorf("%g of %d are %d, want %d", c.share, c.n, got, c.want)
		}
	}
}
