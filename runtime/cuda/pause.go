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
	timer *time.Timer
}

const (
	spin     = 200 * time.Microsecond // polled without a pause
	sleepMin = 20 * time.Microsecond
	sleepMax = time.Millisecond
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
	if p.timer == nil {
		p.timer = time.NewTimer(p.sleep)
	} else {
		p.timer.Reset(p.sleep)
	}
	select {
	case <-p.timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pause) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
