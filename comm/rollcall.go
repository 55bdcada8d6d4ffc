package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/comm/transport"
)

// callRoll asks all ranks where they are, and returns who is to blame for a call
// that is late.
func (a *alarm) callRoll(ctx context.Context, stuck *StuckError) error {
	late := stuck.TimeoutError
	if err := errors.Join(a.tell(ctx, false), a.store.Set(ctx, a.prefix+"alarm", []byte{1})); err != nil {
		return fmt.Errorf("%w (where the other ranks are is unknown: %w)", stuck, err)
	}
	all := a.answers(ctx)
	stuck.Waits = a.g.waits(all, late.Call.Seq, stuck.GPU != "")
	for r, p := range all {
		switch {
		case r == a.g.o.Rank:
		case p == nil:
			stuck.Silent = append(stuck.Silent, r)
		case late.Call.Kind == transport.Send:
			if r == late.Peer && (p.Running == nil || *p.Running != late.Call) {
				stuck.Behind = append(stuck.Behind, *p)
			}
		case !p.of(stuck.GPU != "").reached(late.Call.Seq):
			stuck.Behind = append(stuck.Behind, *p)
		case stuck.GPU != "":
			// NCCL does not compare calls.
			if theirs := p.GPU.collective(late.Call.Seq); theirs != nil && *theirs != late.Call {
				return &transport.MismatchError{Rank: a.g.o.Rank, Peer: r, Mine: late.Call, Theirs: *theirs}
			}
		}
	}
	return stuck
}

// answers waits for all ranks to say where they are, each as long as the others:
// one that is silent must not use up the time of the rest. nil is no answer.
func (a *alarm) answers(ctx context.Context) []*Position {
	ctx, cancel := context.WithTimeout(ctx, rollCall)
	defer cancel()
	all := make([]*Position, a.g.o.Size)
	var asked sync.WaitGroup
	for r := range all {
		asked.Go(func() { // ends with ctx
			b, err := a.store.Wait(ctx, a.at(r))
			p := new(Position)
			if err == nil && json.Unmarshal(b, p) == nil {
				all[r] = p
			}
		})
	}
	asked.Wait()
	return all
}

// of is how far the rank's calls on GPU memory have come, or those on the host's.
func (p *Position) of(gpu bool) *Progress {
	if gpu {
		return &p.GPU
	}
	return &p.Progress
}

// reached reports whether the rank has entered collective seq.
func (p *Progress) reached(seq uint64) bool {
	for _, h := range []*transport.Header{p.Ended, p.Running} {
		if h != nil && h.Kind != transport.Send && h.Kind != transport.Recv && h.Seq >= seq {
			return true
		}
	}
	return false
}

// collective is the rank's collective seq, nil where the position does not show it.
func (p *Progress) collective(seq uint64) *transport.Header {
	for _, h := range []*transport.Header{p.Ended, p.Running, p.Enqueued} {
		if h != nil && h.Kind != transport.Send && h.Kind != transport.Recv && h.Seq == seq {
			return h
		}
	}
	return nil
}

// position is how far this rank has come.
func (g *Group) position() Position {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := Position{Rank: g.o.Rank, Host: g.o.Host}
	// The history is no help here: more calls than it holds may wait behind a stuck one.
	set := func(at **transport.Header, h transport.Header) {
		if h.Kind != 0 {
			*at = &h
		}
	}
	set(&p.Ended, g.ended)
	for s := g.oldest; s != nil && p.Enqueued == nil; s = s.next {
		if !s.started {
			set(&p.Enqueued, s.work.header)
		}
	}
	if u := g.gpu; u != nil {
		set(&p.GPU.Ended, u.ended)
		for _, f := range u.flights[:min(len(u.flights), 2)] { // at most the first has started
			if f.since.IsZero() && p.GPU.Enqueued == nil {
				set(&p.GPU.Enqueued, f.work.header)
			}
		}
	}
	for _, c := range g.running(nil) { // a call that NCCL is still making waits for the others already
		set(&p.of(c.gpu).Running, c.Header)
		p.of(c.gpu).Awaits = g.awaits(c)
	}
	return p
}

// halted tells the other ranks that nobody takes what this one's calls on GPU memory
// leave for complete any more. In a group without GPUs nobody asks.
func (a *alarm) halted(ctx context.Context) error {
	if a.g.o.gpu == nil {
		return nil
	}
	return a.store.Set(ctx, a.haltedAt(a.g.o.Rank), []byte{1})
}

func (a *alarm) haltedAt(rank int) string { return fmt.Sprintf("%shalted/%d", a.prefix, rank) }

// halt is halted, and waits until all ranks say the same, but not for long.
func (a *alarm) halt() {
	ctx, cancel := context.WithTimeout(context.Background(), rollCall)
	defer cancel()
	if err := a.halted(ctx); err != nil {
		return // the store is lost, and no rank hears of another
	}
	var asked sync.WaitGroup
	for r := range a.g.o.Size {
		asked.Go(func() { // ends with ctx
			_, _ = a.store.Wait(ctx, a.haltedAt(r)) // a rank that is gone does not answer
		})
	}
	asked.Wait()
}
