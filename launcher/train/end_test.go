package train

import (
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/launcher/status"
)

// Rank 0 saves and sums up for as long as that takes: on the CPU the others have
// ended by then, and no deadline of theirs can end a job that is done.
func TestNobodyWaitsForTheLastCheckpoint(t *testing.T) {
	cfg := parse(t, "output="+t.TempDir(), "train.micro_batch=6")
	ended := make(chan struct{})
	summary := func(line string) {
		if !strings.Contains(line, "tokens/s, ") {
			return
		}
		select {
		case <-ended:
		case <-t.Context().Done():
		}
	}
	_, errs := onRanks(t, 2, summary, func(g *comm.Group, out *status.Writer) error {
		if g.Rank() == 1 {
			defer close(ended)
		}
		return run(t.Context(), cfg, out, place{ranks: 2}, joining(g))
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Every byte that is sent until the last step ends belongs to a step: also what an
// evaluation or a comparison between two of them has sent, or what is counted late.
func TestNoByteIsLostBetweenSteps(t *testing.T) {
	var before [2]int64
	_, errs := trainChanged(t, 2, func(j *job) { before[j.rank()] = j.reducer.Sent() }, func(j *job) {
		if want := j.counted - before[j.rank()]; j.totals.sent != want || want == 0 || j.counted > j.reducer.Sent() {
			t.Errorf("rank %d: the steps have %d bytes, %d were sent", j.rank(), j.totals.sent, want)
		}
	}, "output="+t.TempDir(), "train.micro_batch=6", "eval.every=1", "parallel.check_replicas=1")
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}
