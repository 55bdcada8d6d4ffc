package comm

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/tune"
)

// tuning is what all engines of a group choose by beside the formula.
type tuning struct {
	table atomic.Pointer[tune.Table] // nil: nothing was measured
	level slog.Level                 // at which choices are logged
}

// seconds is the formula's estimate, corrected by what was measured.
func (f *flat) seconds(k transport.Kind, a Algorithm, size int) float64 {
	return f.cost.seconds(k, a, f.x.size(), size, f.chunk) * f.tuned.table.Load().Off(k.String(), string(a), size)
}

// chosen is the choices that an engine has made.
type chosen struct {
	table  *tune.Table // by which
	picks  map[sized]pick
	logged map[choice]bool
}

// sized is what a choice depends on, for a given group.
type sized struct {
	kind transport.Kind
	size int
}

type pick struct {
	algorithm Algorithm
	predicted time.Duration
}

// mostPicks bounds what is remembered for programs whose sizes never repeat.
const mostPicks = 1024

// choose picks the algorithm of a call, the same on every rank, and tells how long the
// call will take. Where there is one algorithm alone nothing is predicted.
func (f *flat) choose(c *call) (Algorithm, time.Duration) {
	list := candidates(c.Kind)
	if len(list) == 1 || f.x.size() == 1 {
		return list[0], 0
	}
	if table := f.tuned.table.Load(); f.chosen.picks == nil || table != f.chosen.table || len(f.chosen.picks) == mostPicks {
		f.chosen = chosen{table, map[sized]pick{}, map[choice]bool{}}
	}
	s := sized{c.Kind, fullBytes(c.Header, f.x.size())}
	p, known := f.chosen.picks[s]
	if !known {
		p = f.pick(s, list)
		f.chosen.picks[s] = p
		f.say(c, s, p)
	}
	return p.algorithm, p.predicted
}

// pick is the cheapest of the list, or the one that the options name.
func (f *flat) pick(s sized, list []Algorithm) pick {
	list, _ = f.rules.allow(s.kind, list)
	return cheapest(list, f.algo, func(a Algorithm) float64 { return f.seconds(s.kind, a, s.size) })
}

// cheapest is the algorithm of the list that takes the fewest seconds, or the one that is
// wanted, if it is there.
func cheapest(list []Algorithm, wanted Algorithm, seconds func(Algorithm) float64) pick {
	if slices.Contains(list, wanted) {
		list = []Algorithm{wanted}
	}
	best := list[0]
	least := seconds(best)
	for _, a := range list[1:] {
		if t := seconds(a); t < least {
			best, least = a, t
		}
	}
	if least > time.Hour.Seconds() { // an algorithm that the formula rules out, and the options want
		return pick{best, 0}
	}
	return pick{best, time.Duration(least * float64(time.Second))}
}

// say logs the first choice of each class, but of the group's own calls while it is made.
func (f *flat) say(c *call, s sized, p pick) {
	if c.Seq >= decideSeq {
		return
	}
	key := choice{kind: s.kind, algorithm: p.algorithm, class: classOf(s.size)}
	if f.chosen.logged[key] {
		return
	}
	f.chosen.logged[key] = true
	f.log.Log(context.Background(), f.tuned.level, "comm: algorithm", "call", c.Header.String(), "bytes", s.size, "ranks", f.x.size(),
		"algorithm", string(p.algorithm), "predicted", p.predicted, "measured links", f.chosen.table != nil)
}

// choice is calls that are alike.
type choice struct {
	kind      transport.Kind
	algorithm Algorithm
	class     int
	gpu       bool
}

// classOf is the same for sizes between two powers of two, and for each of them with
// those below it.
func classOf(bytes int) int {
	if bytes == 0 {
		return 0
	}
	return bits.Len(uint(bytes - 1))
}

// ChoiceStats is the calls of one kind and algorithm with sizes above half of Bytes, up
// to Bytes.
type ChoiceStats struct {
	Call      transport.Kind
	Algorithm Algorithm
	GPU       bool // of memory of a GPU
	Bytes     int  // of the full array
	Calls     int64
	// Predicted is the mean of what the cost model expected; 0 where it had nothing to
	// choose, as in shared memory.
	Predicted time.Duration
	// Mean is how long the calls took. Waiting for slower ranks is in it.
	Mean time.Duration
}

// choices sums up a group's calls.
type choices struct {
	order []choice
	sums  map[choice]*choiceSum
}

type choiceSum struct {
	calls            int64
	predicted, spent time.Duration
}

func (s *choices) add(c choice, r Result) (first bool) {
	sum := s.sums[c]
	if first = sum == nil; first {
		if s.sums == nil {
			s.sums = map[choice]*choiceSum{}
		}
		sum = &choiceSum{}
		s.sums[c] = sum
		s.order = append(s.order, c)
	}
	sum.calls++
	sum.predicted += r.Predicted
	sum.spent += r.End.Sub(r.Start)
	return first
}

func (s *choices) list() []ChoiceStats {
	var all []ChoiceStats
	for _, c := range s.order {
		sum := s.sums[c]
		n := time.Duration(sum.calls)
		all = append(all, ChoiceStats{c.kind, c.algorithm, c.gpu, 1 << c.class, sum.calls, sum.predicted / n, sum.spent / n})
	}
	return all
}

// report logs what the group's calls took, beside what was predicted.
func (g *Group) report() {
	for _, c := range g.Stats().Choices {
		g.o.Logger.Log(context.Background(), g.tuned.level, "comm: calls", "group", g.o.Name, "rank", g.o.Rank, "call", c.Call.String(), "up to bytes", c.Bytes,
			"gpu", c.GPU, "algorithm", string(c.Algorithm), "calls", c.Calls, "predicted", c.Predicted, "mean", c.Mean)
	}
}

// Tuning is what was measured of the group's links, the same on all ranks; nil where
// nothing was. Algorithms are chosen by it, and sums are rounded as their algorithm does.
func (g *Group) Tuning() []byte {
	table := g.tuned.table.Load()
	if table == nil {
		return nil
	}
	return table.Encode()
}

// Retune makes the group choose as the one did that tuning is from, so that a job which
// goes on rounds as before. All ranks do so between the same two calls. It waits for
// those that are enqueued.
func (g *Group) Retune(tuning []byte) error {
	table, err := tune.Decode(tuning)
	if err != nil {
		return fmt.Errorf("comm: rank %d: %w", g.o.Rank, err)
	}
	for _, w := range g.latest() {
		<-w.Done()
	}
	g.tuned.table.Store(table)
	return nil
}
