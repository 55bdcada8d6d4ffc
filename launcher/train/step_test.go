package train

import (
	"context"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/device"
)

// moment is an event that is reached so long after a step's beginning.
type moment time.Duration

func (moment) Sync(context.Context) error { return nil }
func (m moment) Since(earlier device.Event) (time.Duration, error) {
	return time.Duration(m - earlier.(moment)), nil
}

// Every moment of a step belongs to one part of it: 20 ms of waiting for rows lie in
// the second backward pass, 10 ms for buckets behind it, among the norms.
func TestTheTimesOfAStepAreItsParts(t *testing.T) {
	const ms = moment(time.Millisecond)
	marks := []device.Event{5 * ms, 105 * ms, 305 * ms, 405 * ms, 625 * ms}
	got, err := stepTimes(marks, 665*ms, waits{exposed: time.Duration(30 * ms), backward: time.Duration(20 * ms)})
	if want := (times{forward: 200, backward: 400, exposed: 30, optim: 30}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// The wait for the rows of a tied embedding is told apart from that for buckets.
func TestTheWaitForRowsIsWithinTheBackwardPass(t *testing.T) {
	_, errs := trainChanged(t, 2, func(*job) {}, func(j *job) {
		if s, err := j.sink.(*ddp.DDP).Stats(t.Context()); err != nil || s.Rows != 2*16 || s.Within <= 0 || s.Within >= s.Exposed {
			t.Errorf("rank %d: %d rows, %s of %s exposed within the backward pass, %v", j.rank(), s.Rows, s.Within, s.Exposed, err)
		}
	}, "output="+t.TempDir(), "train.micro_batch=1", "model.tie_embeddings=true", "eval.every=0")
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// Data that is read while the device computes costs a step nothing.
func TestReadingCountsBehindTheDevice(t *testing.T) {
	at := func(ms int) time.Time { return time.Time{}.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct{ from, to, ended, want int }{{10, 20, 30, 0}, {10, 20, 17, 3}, {10, 20, 5, 10}} {
		if got := (span{at(c.from), at(c.to)}).behind(at(c.ended)); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if got := (span{}).behind(at(1)); got != 0 { // behind the last step nothing is read
		t.Errorf("no reading: %s", got)
	}
}
