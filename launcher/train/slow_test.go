package train

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func TestLaggardOf(t *testing.T) {
	works := []float64{3, 0.25, 1e6, 7} // milliseconds
	largest, sum := 0., 0.
	for r, w := range works {
		largest, sum = math.Max(largest, tagged(w, 1000*r)), sum+w
	}
	got := laggardOf(largest, sum/4, 4)
	if want := 1e6 - (3+0.25+7)/3; got.rank != 2000 || math.Abs(got.by-want) > 1e-6 {
		t.Errorf("got %+v, want rank 2000 by %g", got, want)
	}
}

// busy is a model that takes longer than those of two other ranks: for takes after
// both of them have done their work.
type busy struct {
	models.Model
	j      *job
	others <-chan struct{}
	takes  time.Duration
}

func (b *busy) Forward(w param.Weights, batch models.Batch, loss tensor.Tensor, train bool) {
	b.Model.Forward(w, batch, loss, train)
	b.j.compute.(*device.CPUStream).Do("busy", func() error {
		<-b.others
		<-b.others
		for begin := time.Now(); time.Since(begin) < b.takes; {
		}
		return nil
	})
}

// prompt is a model that tells when it has done its work.
type prompt struct {
	models.Model
	j    *job
	done chan<- struct{}
}

func (p *prompt) Backward(w param.Weights, g param.GradSink, scale float32) {
	p.Model.Backward(w, g, scale)
	p.j.compute.(*device.CPUStream).Do("done", func() error {
		p.done <- struct{}{}
		return nil
	})
}

// A rank that is slower than the others is named in every step and in the summary,
// though all ranks' steps take the same time.
func TestASlowRankIsNamed(t *testing.T) {
	dir := t.TempDir()
	done := make(chan struct{}, 100)
	slow := func(j *job) {
		if j.rank() == 2 {
			j.model = &busy{j.model, j, done, 100 * time.Millisecond}
		} else {
			j.model = &prompt{j.model, j, done}
		}
	}
	said, errs := trainChanged(t, 3, slow, nil, "output="+dir, "train.micro_batch=4", "eval.every=0", "checkpoint.every=0")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if want := "rank 2 on "; !strings.Contains(said, want) || !strings.Contains(said, "was the slowest in 100 % of the steps, by ") {
		t.Errorf("the summary names nobody:\n%s", said)
	}
	b, err := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for line := range strings.Lines(string(b)) {
		var r stepRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.StepMS == 0 || r.Step == 0 || strings.Contains(line, "event") {
			continue
		}
		steps++
		if r.SlowestRank == nil || *r.SlowestRank != 2 || r.SlowestByMS < 30 || r.SlowestByMS > r.StepMS {
			t.Errorf("step %d: %s", r.Step, line)
		}
	}
	if steps != 6 {
		t.Errorf("%d steps, want 6", steps)
	}
}

// Nobody is named where ranks take turns at being the slowest, or by next to nothing.
func TestNobodyIsSlow(t *testing.T) {
	host := func(int) string { return "h" }
	var turns, little, one, much laggards
	for i := range 10 {
		turns.add(2, laggard{i % 2, 50})
		little.add(2, laggard{1, 1})
		one.add(1, laggard{})
		much.add(2, laggard{(i + 9) / 10, 50})
	}
	for name, l := range map[string]*laggards{"turns": &turns, "little": &little, "one rank": &one, "no step": {}} {
		if got := l.line(100, host); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got, want := much.line(100, host), "rank 1 on h was the slowest in 90 % of the steps, by 50.0 ms: the others waited for it"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
