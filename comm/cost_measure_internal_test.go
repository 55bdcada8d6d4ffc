package comm

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// slowLinks are links on which what is received has been under way for a while.
type slowLinks struct {
	links
	message, perKiB time.Duration
	posted          map[int][]int // sizes of what is to come from each peer
	waits           int
}

func (l *slowLinks) PostRecv(c *transport.Call, peer int, b []byte) error {
	l.posted[peer] = append(l.posted[peer], len(b))
	return l.links.PostRecv(c, peer, b)
}

func (l *slowLinks) WaitRecv(c *transport.Call, peer int) error {
	l.waits++
	size := l.posted[peer][0]
	l.posted[peer] = l.posted[peer][1:]
	<-time.After(l.message + l.perKiB*time.Duration(size>>10))
	return l.links.WaitRecv(c, peer)
}

// On links with a long latency two calls are made and no more; on those with a small
// bandwidth the small sizes are measured, and none by halves.
func TestSlowLinksAreNotMeasuredForLong(t *testing.T) {
	for name, c := range map[string]struct {
		message, perKiB time.Duration
		waits, sizes    int // at most
	}{
		"latency":   {tuneWithin, 0, 3, 0},
		"bandwidth": {0, tuneWithin / 256, 1000, 1},
	} {
		groups, err := Local(2, Options{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var ranks sync.WaitGroup
		for _, g := range groups {
			ranks.Go(func() {
				e := g.engine.(*flat)
				l := &slowLinks{e.x.links, c.message, c.perKiB, map[int][]int{}, 0}
				e.x.links = l
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				m, err := linkBench{g}.measure(ctx, tuneWithin)
				if err != nil {
					t.Error(err)
				}
				count := map[int]int{}
				for _, p := range m {
					count[p.Bytes]++
				}
				if l.waits > c.waits {
					t.Errorf("%s: rank %d waited for %d messages, want at most %d: of two barriers, and of the decision", name, g.o.Rank, l.waits, c.waits)
				}
				if g.o.Rank == 0 && len(count) > c.sizes {
					t.Errorf("%s: %v trials at the sizes measured, want at most %d sizes", name, count, c.sizes)
				}
				for size, n := range count {
					if n != 10 {
						t.Errorf("%s: %d trials at %d bytes, want all 10 or none", name, n, size)
					}
				}
			})
		}
		ranks.Wait()
		for _, g := range groups {
			ranks.Go(func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		ranks.Wait()
	}
}

// A size of which a trial is missing counts for none; what was not worth a trial counts
// with the others of its size.
func TestSizesCountAsAWhole(t *testing.T) {
	ar := transport.AllReduce
	trials := []trial{
		{kind: transport.Barrier},
		{kind: ar, algorithm: Direct, size: 1}, {kind: ar, algorithm: Ring, size: 1, hopeless: true},
		{kind: ar, algorithm: Direct, size: 2}, {kind: ar, algorithm: Ring, size: 2},
	}
	for done, want := range map[int]int{0: 0, 1: 0, 3: 2, 4: 2, 5: 4} {
		if got := points(trials, done); len(got) != want {
			t.Errorf("after %d trials %v count, want %d", done, got, want)
		}
	}
}
