package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// How ranks agree on why their group failed. The first to notice a failure writes
// the verdict to the store, where the first writer wins; everybody else takes it
// from there. When a call is late, the ranks first say where they are, so that the
// verdict can name the one that is behind.
//
//	<group>/alarm       exists once something is wrong: everybody wakes up
//	<group>/at/<rank>   the rank's Position, written when it woke up or left
//	<group>/verdict     the reason, written once
//	<group>/left        how many ranks have closed the group
//	<group>/halted/<rank>  exists once the rank's calls on GPU memory cannot be taken
//	                    for complete any more

const (
	// agreeWithin bounds all that a failing rank does at the store.
	agreeWithin = 3 * time.Second
	// rollCall is how long ranks may take to say where they are, on a busy host too.
	rollCall = 2 * time.Second
	// watchFor bounds one wait for the alarm, which is then waited for again.
	watchFor = time.Minute
	// streamCheck is how often streams with calls on them are looked at.
	streamCheck = 50 * time.Millisecond
	// slow is how long a call runs before its rank looks whether somebody has left.
	slow = time.Second
)

// alarm is a group's view of the store.
type alarm struct {
	g        *Group
	store    Store
	prefix   string
	life     context.Context
	end      context.CancelFunc
	routines sync.WaitGroup
}

func newAlarm(g *Group, store Store, prefix string) *alarm {
	life, end := context.WithCancel(context.Background())
	return &alarm{g: g, store: store, prefix: prefix, life: life, end: end}
}

func (a *alarm) start() {
	a.routines.Add(2)
	go a.routineWatch()
	go a.routineCalls()
}

func (a *alarm) stop() {
	a.end()
	a.routines.Wait()
}

// leave tells the others that this rank has closed the group.
func (a *alarm) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), agreeWithin)
	defer cancel()
	err := a.tell(ctx, true)
	if err == nil {
		_, err = a.store.Add(ctx, a.prefix+"left", 1)
	}
	if err == nil {
		err = a.halted(ctx)
	}
	if err != nil { // who still waits for this rank waits until the deadline
		a.g.o.Logger.Debug("comm: cannot say that this rank has left", "rank", a.g.o.Rank, "err", err)
	}
}

// routineWatch waits for another rank's alarm, says where this one is, and ends
// the group with the verdict. One per group, started by start, ended by stop or
// the group's death.
func (a *alarm) routineWatch() {
	defer a.routines.Done()
	for {
		ctx, cancel := context.WithTimeout(a.life, watchFor)
		_, err := a.store.Wait(ctx, a.prefix+"alarm")
		late := ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
		cancel()
		switch {
		case a.life.Err() != nil:
			return
		case err != nil && late:
			continue
		case err != nil:
			a.g.die(fmt.Errorf("the store by which the ranks agree on failures is lost: %w", err))
			return
		}
		break
	}
	ctx, cancel := context.WithTimeout(a.life, rollCall+agreeWithin)
	defer cancel()
	if err := a.tell(ctx, false); err != nil {
		a.g.o.Logger.Debug("comm: cannot say where this rank is", "rank", a.g.o.Rank, "err", err)
	}
	b, err := a.store.Wait(ctx, a.prefix+"verdict")
	switch {
	case a.life.Err() != nil:
	case err != nil:
		a.g.die(fmt.Errorf("another rank raised the alarm, but did not say why: %w", err))
	default:
		a.g.die(parseVerdict(b))
	}
}

// routineCalls notices calls that would wait for ever: on a stream that has failed,
// or for a rank that has left or is lost. One per group, started by start, ended by stop or
// the group's death.
func (a *alarm) routineCalls() {
	defer a.routines.Done()
	defer a.g.present.close()
	tick := time.NewTicker(streamCheck)
	defer tick.Stop()
	looked := time.Now()
	var space [mostRunning]underWay
	for {
		select {
		case <-tick.C:
		case <-a.g.dead:
			return
		case <-a.life.Done():
			return
		}
		if err := a.g.brokenStream(); err != nil {
			a.g.fail(&StreamError{Rank: a.g.o.Rank, Host: a.g.o.Host, Err: err})
			return
		}
		if r := a.g.present.ended(); r >= 0 {
			if err := a.lost(r); err != nil {
				a.g.fail(err)
				return
			}
		}
		a.g.mu.Lock()
		running := a.g.running(space[:0])
		a.g.mu.Unlock()
		for _, c := range running {
			if time.Since(c.since) > slow && time.Since(looked) > slow {
				if err := a.missing(c); err != nil {
					a.g.fail(err)
					return
				}
				looked = time.Now()
			}
		}
	}
}

// missing looks for a rank that left before it did its part of call c.
func (a *alarm) missing(c underWay) error {
	ctx, cancel := context.WithTimeout(a.life, agreeWithin)
	defer cancel()
	if n, err := a.store.Add(ctx, a.prefix+"left", 0); err != nil || n == 0 {
		return nil // a lost store is routineWatch's affair
	}
	for r := range a.g.o.Size {
		b, err := a.store.Get(ctx, a.at(r))
		var p Position
		if err != nil || json.Unmarshal(b, &p) != nil || !p.Closed {
			continue
		}
		needed := !p.of(c.gpu).reached(c.Seq)
		if c.Kind == transport.Send || c.Kind == transport.Recv {
			needed = int(c.Root) == r
		}
		if needed {
			return &transport.PeerError{Peer: r, Host: p.Host, Err: fmt.Errorf("it has closed the group, and did not call %s", c.Header)}
		}
	}
	return nil
}

// underWay is a call that runs, as this rank knows it.
type underWay struct {
	transport.Header
	gpu   bool
	since time.Time
}

// mostRunning is how many calls are under way at most: one on host memory, one on the
// GPU, and one on the way there.
const mostRunning = 3

// running appends the calls under way. g.mu is held.
func (g *Group) running(calls []underWay) []underWay {
	if g.oldest != nil && g.oldest.started {
		calls = append(calls, underWay{g.oldest.work.header, false, g.oldest.call.Deadline.Add(-g.o.Timeout)})
	}
	if u := g.gpu; u != nil {
		if len(u.flights) > 0 && !u.flights[0].since.IsZero() {
			calls = append(calls, underWay{u.flights[0].work.header, true, u.flights[0].since})
		}
		if u.making != nil {
			calls = append(calls, *u.making)
		}
	}
	return calls
}

// brokenStream is the error of a stream whose calls will not run.
func (g *Group) brokenStream() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := g.oldest; s != nil; s = s.next {
		if !s.started && s.stream.Err() != nil {
			return s.stream.Err()
		}
	}
	return nil
}

// raise tells all ranks that the group has failed because of err, and returns what
// they have agreed on: err, or what another rank found first.
func (a *alarm) raise(err error) error {
	a.end() // this rank needs no watchers any more
	ctx, cancel := context.WithTimeout(context.Background(), rollCall+agreeWithin)
	defer cancel()
	if stuck, ok := errors.AsType[*StuckError](err); ok {
		err = a.callRoll(ctx, stuck)
	} else if late, ok := errors.AsType[*transport.TimeoutError](err); ok {
		err = a.callRoll(ctx, &StuckError{TimeoutError: *late, Rank: a.g.o.Rank, Link: a.g.linkTo(late.Peer)})
	}
	mine := verdictOf(a.g, err)
	b, e := json.Marshal(mine)
	if e != nil {
		return errors.Join(err, e)
	}
	stored, first, e := a.store.CompareAndSet(ctx, a.prefix+"verdict", nil, b)
	if e == nil {
		e = a.store.Set(ctx, a.prefix+"alarm", []byte{1})
	}
	if e != nil {
		return fmt.Errorf("%w (and the other ranks could not be told: %w)", err, e)
	}
	if first {
		return mine.reason()
	}
	return parseVerdict(stored)
}

// tell writes where this rank is.
func (a *alarm) tell(ctx context.Context, closed bool) error {
	p := a.g.position()
	if p.Closed = closed; !closed {
		p.Stacks = whereabouts(a.g.maker)
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return a.store.Set(ctx, a.at(a.g.o.Rank), b)
}

func (a *alarm) at(rank int) string { return fmt.Sprintf("%sat/%d", a.prefix, rank) }
