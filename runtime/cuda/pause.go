package cuda

import (
	"context"
	"runtime"
	"time"
)

// pause is how a poll waits between two looks: at first not at all, for what
// takes microseconds, and then for times that grow.
type pause struct {
	start time.Time
	sleep time.Duration
}

const (
	spin     = 200 * time.Microsecond // polled without a pause
	sleepMin = 20 * time.Microsecond
	sleepMax = 100 * time.Microsecond // the delay with which an event is seen: of a step of 60 ms, 0.1 %
)

// wait returns false when ctx has ended.
func (p *pause) wait(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	if p.start.IsZero() {
		p.start = time.Now()
	}
	if time.Since(p.start) < spin {
		runtime.Gosched()
		return true
	}
	p.sleep = min(max(2*p.sleep, sleepMin), sleepMax)
	time.Sleep(p.sleep)
	return true
}
