package comm

import (
	"context"
	"errors"
	"time"
)

// routineWatch sees the calls on GPU memory end, in their order, and the group's
// timeout and NCCL's errors while they run. When the group is dead it ends what is
// left of them. One per group with a GPU, started by wireGPU, ended by the group's
// death or Close.
func (u *gpu) routineWatch() {
	defer close(u.done)
	var wait lull
	for {
		flights := u.flying()
		if len(flights) == 0 {
			wait = lull{}
			select {
			case <-u.wake:
				continue
			case <-u.g.dead:
				u.land()
				return
			}
		}
		progress, err := u.look(flights[0])
		if err != nil {
			u.g.fail(err)
		}
		if progress {
			wait = lull{}
			continue
		}
		if !wait.over(u.g.dead, len(flights) >= many) {
			u.land()
			return
		}
		u.skim()
	}
}

// many is how many calls under way are too many to ask the driver for each of them: it has
// one lock for who asks and who enqueues.
const many = 16

// skim sees by one look that of many calls those have ended which a later one, which has
// ended, followed on its stream.
func (u *gpu) skim() {
	flights := u.flying()
	if len(flights) < many {
		return
	}
	for n := len(flights) / 2; n > 1; n /= 2 {
		last, ok := flights[n].progress.(byEvents)
		if !ok {
			continue
		}
		if there, err := last.ended(); err != nil || !there {
			continue // look meets the error
		}
		for _, f := range flights[:n] {
			if p, ok := f.progress.(byEvents); ok {
				p.end.ReachedWith(last.end)
			}
		}
		return
	}
}

// flying is the calls that have not been seen to end. Only routineWatch takes any away, and
// it alone may look at them without g.mu.
func (u *gpu) flying() []*flight {
	u.g.mu.Lock()
	defer u.g.mu.Unlock()
	return u.flights
}

// look sees how far the oldest call is, and retires it when it has ended.
func (u *gpu) look(f *flight) (progress bool, err error) {
	g := u.g
	if f.progress == nil {
		return false, nil // could not be enqueued, for which the group dies
	}
	broken := func(err error) error { return &StreamError{Rank: g.o.Rank, Host: g.o.Host, Err: err} }
	if f.since.IsZero() {
		there, err := f.progress.began()
		switch {
		case err != nil:
			return false, broken(err)
		case there:
			progress = true
			g.mu.Lock()
			f.since = time.Now()
			g.history.start(f.entry, f.since)
			g.mu.Unlock()
		}
	}
	if there, err := f.progress.ended(); err != nil {
		return false, broken(err)
	} else if there {
		r := Result{Algorithm: f.algorithm, Predicted: f.predicted, Sent: f.sent, Received: f.received, End: time.Now()}
		took, err := f.progress.took()
		if err != nil {
			return false, broken(err)
		}
		r.Start = r.End.Add(-took)
		g.mu.Lock()
		u.flights[0] = nil
		u.flights = u.flights[1:]
		g.mu.Unlock()
		u.moved.Sent.Add(f.sent)
		u.moved.Received.Add(f.received)
		u.retire(f, r)
		return true, nil
	}
	if err := u.engine.failed(); err != nil {
		return false, &CallError{Rank: g.o.Rank, Host: g.o.Host, Call: f.work.header, Err: err}
	}
	switch ran := time.Since(f.since); {
	case f.since.IsZero():
	case ran > g.o.Timeout:
		u.note(f)
		return false, u.late(f)
	case ran > slow && time.Since(u.asked) > slow:
		u.note(f)
	}
	return progress, nil
}

// land ends the calls of a dead group. Their streams fail first: what waits on them
// must not take what an aborted call left for its result. Then all ranks tell each
// other that they have got so far, for a rank's kernels that are aborted can make
// those of its peers end, as if all were well.
func (u *gpu) land() {
	g := u.g
	err := g.Err()
	g.mu.Lock()
	flights := u.flights
	u.flights, u.landed = nil, true
	g.mu.Unlock()
	for _, f := range flights {
		f.stream.Fail(err)
	}
	if u.engine != nil && !errors.Is(err, ErrClosed) {
		u.stream.Fail(err)
		g.alarm.halt()
		if e := u.engine.abort(); e != nil {
			g.o.Logger.Warn("comm: calls of a failed group may still be on the GPU", "group", g.o.Name, "rank", g.o.Rank, "err", e)
		}
	}
	for _, f := range flights {
		r := Result{Algorithm: f.algorithm, Start: f.since, End: time.Now(), Err: err}
		if f.since.IsZero() {
			r.Start = r.End
		}
		u.retire(f, r)
	}
}

// retire ends the call's Work.
func (u *gpu) retire(f *flight, r Result) {
	g := u.g
	if f.progress != nil {
		f.progress.release()
	}
	g.mu.Lock()
	g.history.end(f.entry, r)
	first := g.stats.add(f.work.header, g.o.Size, true, r)
	if r.Err == nil {
		u.ended = f.work.header
	}
	g.mu.Unlock()
	if first { // calls on host memory are logged before: see flat.say
		g.o.Logger.Log(context.Background(), g.tuned.level, "comm: algorithm", "call", f.work.header.String(), "gpu", true, "algorithm", string(r.Algorithm), "predicted", r.Predicted, "took", r.End.Sub(r.Start))
	}
	f.work.finish(r)
}

// lull is the time between two looks at the GPU, which grows while nothing happens, and is
// longer where many calls are to end.
type lull struct{ last time.Duration }

// over returns when it is, and false where dead is closed by then.
func (l *lull) over(dead <-chan struct{}, many bool) bool {
	least := 20 * time.Microsecond
	if many {
		least = 200 * time.Microsecond
	}
	l.last = min(max(2*l.last, least), time.Millisecond)
	nap(l.last)
	select {
	case <-dead:
		return false
	default:
		return true
	}
}
