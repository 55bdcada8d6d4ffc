package cluster

import (
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/comm/store"
)

// host is a clock that shows what time.Now would on a host: a wall clock, which
// somebody sets, beside a monotonic one, which nobody can.
type host struct {
	now time.Time     // on the monotonic clock
	set time.Duration // the wall clock's error
}

// clock returns the time as the host reads it. A time.Time keeps both clocks; its
// first word holds the wall's seconds in bits 30 to 62. There is no call that moves
// one without the other.
func (h *host) clock() time.Time {
	t := h.now
	*(*int64)(unsafe.Pointer(&t)) += int64(h.set/time.Second) << 30
	return t
}

func TestHostClock(t *testing.T) {
	h := &host{now: time.Now()}
	before := h.clock()
	h.set, h.now = time.Hour, h.now.Add(time.Second)
	after := h.clock()
	if d := after.Sub(before); d != time.Second {
		t.Errorf("the monotonic clock moved by %s", d)
	}
	if d := after.Round(0).Sub(before.Round(0)); d != time.Hour+time.Second {
		t.Errorf("the wall clock moved by %s", d)
	}
}

// However wrong a host's clock is, and however it jumps while the job runs, the same
// nodes count as alive and the same worker is named.
func TestClocksJump(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, from := range []time.Duration{0, time.Hour, -time.Hour} {
		for _, to := range []time.Duration{0, time.Hour, -time.Hour} {
			for jumping := range 3 {
				name := "node " + strconv.Itoa(jumping) + " from " + from.String() + " to " + to.String()
				start := time.Now()
				var hosts [3]*host
				var members [3]*Member
				for i := range members {
					hosts[i] = &host{now: start}
					if i == jumping {
						hosts[i].set = from
					}
					m := newMember(Options{})
					m.layout = &Layout{Self: i, Nodes: []Node{{Index: 0, NProc: 1}, {Index: 1, NProc: 1}, {Index: 2, NProc: 1}}}
					m.clock = hosts[i].clock
					m.beats = make([]time.Time, 3)
					members[i] = m
				}
				zero := members[0]
				pass := func(d time.Duration) {
					for _, h := range hosts {
						h.now = h.now.Add(d)
					}
				}
				beat := func() {
					for i := range hosts {
						zero.take(store.Change{Key: "beat/" + strconv.Itoa(i)})
					}
				}
				judge := func() {
					zero.judge(zero.clock(), false)
				}
				// post brings what a node has sent to node 0.
				post := func(m *Member) {
					for len(m.outbox) > 0 {
						msg := <-m.outbox
						zero.take(store.Change{Key: msg.key, Value: msg.value})
					}
				}
				failed := func(rank int, message string) Failure {
					return Failure{Kind: WorkerFailed, How: Failed, Node: rank, Rank: rank, Host: "h", Started: true, Code: 1, Message: message, At: members[rank].clock()}
				}
				beat()
				hosts[jumping].set = to // in the middle
				pass(silence - s)
				judge()
				if r := zero.round(0); r.ended || len(zero.outbox) > 0 {
					t.Fatalf("%s: a node that beats counts as lost", name)
				}
				beat()
				// Rank 2 fails, then rank 1; rank 0, which complains, is heard first.
				two := failed(2, "mine")
				pass(100 * ms)
				one := failed(1, "mine too")
				pass(100 * ms)
				members[0].Report(failed(0, "Connection reset by peer"))
				post(members[0])
				pass(100 * ms)
				members[1].Conclude(0, []Failure{one})
				members[2].Conclude(0, []Failure{two})
				members[0].Conclude(0, []Failure{failed(0, "Connection reset by peer")})
				for _, m := range members {
					post(m)
				}
				judge()
				post(zero)
				if f := <-zero.round(0).verdict; f.Rank != 2 {
					t.Errorf("%s: named %s", name, f)
				}
				// A silence is noticed when it is one.
				zero.now = 1
				beat()
				pass(silence + s)
				zero.take(store.Change{Key: "beat/1"})
				judge()
				post(zero)
				if f := zero.round(1).first; f == nil || f.Kind != NodeLost || f.Node != 2 {
					t.Errorf("%s: silence is taken for %v", name, f)
				}
			}
		}
	}
}
