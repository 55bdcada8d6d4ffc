package train

import (
	"math"
	"testing"

	"github.com/gorun-dev/gorun/launcher/config"
)

func TestLearningRate(t *testing.T) {
	base := config.Train{LR: 1, WarmupSteps: 4, MinLRRatio: 0.1}
	for _, c := range []struct {
		schedule string
		step     int
		want     float64
	}{
		{"constant", 0, 0.2}, {"constant", 3, 0.8}, {"constant", 4, 1}, {"constant", 103, 1},
		{"linear", 4, 1}, {"linear", 54, 0.55}, {"linear", 104, 0.1}, {"linear", 500, 0.1},
		{"cosine", 4, 1}, {"cosine", 54, 0.55}, {"cosine", 29, 0.1 + 0.9*(1+math.Sqrt2/2)/2}, {"cosine", 104, 0.1},
	} {
		conf := base
		conf.Schedule = c.schedule
		if got := learningRate(conf, c.step, 104); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s at step %d: %v, want %v", c.schedule, c.step, got, c.want)
		}
	}
}
