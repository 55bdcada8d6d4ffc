package train

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// atMost counts who is inside, of whom there may be one.
type atMost struct {
	mu sync.Mutex
	n  int
}

func (a *atMost) enter(t *testing.T, step int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n++; a.n > 1 {
		t.Errorf("the checkpoint of step %d begins beside another", step)
	}
}

func (a *atMost) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n--
}

// ended is a job whose ranks do only f, once they are there.
func ended(t *testing.T, ranks int, f func(j *job)) []error {
	t.Helper()
	_, errs := trainChanged(t, ranks, func(j *job) {
		f(j)
		j.done = j.total // nothing to do
	}, nil, "output="+t.TempDir(), fmt.Sprint("train.micro_batch=", 12/ranks), "eval.every=0", "checkpoint.final=false")
	return errs
}

// Every rank learns what each has come to, and what failed on whom.
func TestAllRanksLearnWhatTheirPartsHaveComeTo(t *testing.T) {
	errs := ended(t, 3, func(j *job) {
		got, failed, err := j.together(t.Context(), "a test", func(context.Context, *part) ([]byte, error) {
			return []byte(fmt.Sprint("rank ", j.rank())[:6-3*j.rank()%6]), nil
		})
		if err != nil || failed != nil || len(got) != 3 || string(got[0]) != "rank 0" || string(got[1]) != "ran" || string(got[2]) != "rank 2" {
			t.Errorf("rank %d: %q, %v, %v", j.rank(), got, failed, err)
		}
		_, failed, err = j.together(t.Context(), "a test", func(context.Context, *part) ([]byte, error) {
			if j.rank() == 1 {
				return nil, errors.New("no space left")
			}
			return []byte("a result"), nil
		})
		if err != nil {
			t.Error(err)
		}
		wants(t, []error{failed}, "rank 1 on ", ": no space left")
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// While one rank's part takes its time, no collective of the others waits for it: they
// exchange again and again that it does.
func TestASlowPartKeepsNoCollectiveWaiting(t *testing.T) {
	errs := ended(t, 2, func(j *job) {
		before := j.group.Stats().Calls
		_, failed, err := j.together(t.Context(), "a test", func(ctx context.Context, _ *part) ([]byte, error) {
			for tick := time.NewTicker(10 * time.Millisecond); j.rank() == 1 && j.group.Stats().Calls < before+6; {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return nil, nil
		})
		if err := errors.Join(failed, err); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// A disk that moves nothing any more ends the job, on all ranks, and is named.
func TestAPartThatIsStuckEndsTheJob(t *testing.T) {
	errs := ended(t, 3, func(j *job) {
		j.cfg = new(*j.cfg)
		j.cfg.Comm.Timeout = 50 * time.Millisecond // the group's own stays what it was
		_, _, err := j.together(t.Context(), "the checkpoint of step 7", func(ctx context.Context, p *part) ([]byte, error) {
			if j.rank() == 2 {
				p.count(5)
				<-ctx.Done()
			}
			return nil, nil
		})
		wants(t, []error{err}, "the checkpoint of step 7: no byte has moved on rank 2 on ", "(comm.timeout)")
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
