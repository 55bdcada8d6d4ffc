package shm

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
)

const (
	slice = 100 * time.Millisecond // how long a rank sleeps before it looks at the others

	futexWait = 0 // the shared kind: FUTEX_PRIVATE_FLAG would not reach other processes
	futexWake = 1
)

// patience is how a rank waits before it sleeps: it looks, then gives the processor
// away for a moment, many times. With a core for each rank long looking pays, for a
// flag takes less than a microsecond; with fewer cores the peer may need this one,
// so it is given away almost at once. A sleeper costs its waker about 10 µs.
type patience struct {
	looks    atomic.Int32 // between fewLooks and most, see wait
	most     int32
	yields   int
	inside   bool // other ranks are goroutines of this process, and may need this goroutine's place
	fallback time.Duration
}

const fewLooks = 20

func (p *patience) set(ranks, cores int) {
	p.most, p.yields = 1000, 50
	if ranks > cores {
		p.most, p.yields = fewLooks, 200
	}
	p.looks.Store(p.most)
}

// signal stores v in a flag of this rank, after everything written before, and
// wakes who sleeps on it.
func signal(flag *uint32, v uint32) {
	atomic.StoreUint32(flag, v)
	if atomic.LoadUint32(sleepers(flag)) != 0 {
		wake(flag)
	}
}

func wake(flag *uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(flag)), futexWake, 1<<30, 0, 0, 0)
}

func sleepers(flag *uint32) *uint32 { return (*uint32)(unsafe.Add(unsafe.Pointer(flag), 4)) }

func reached(flag *uint32, v uint32) bool { return !before(atomic.LoadUint32(flag), v) }

// wait returns when peer's flag has reached v; what peer wrote before is then
// visible. It fails when the team does, when a rank is gone, and at the deadline.
//
// It learns how long to look. A flag that comes while we look is written on another
// core: more looks. A flag that comes as soon as we give the processor away was held
// up by us, on a machine with other things to do: fewer looks.
func (t *Team) wait(c *transport.Call, peer int, flag *uint32, v uint32) error {
	looks := t.looks.Load()
	for i := range looks {
		if reached(flag, v) {
			if i > 0 && looks < t.most {
				t.looks.Store(min(2*looks, t.most))
			}
			return nil
		}
		pause()
	}
	for i := range t.yields {
		if reached(flag, v) {
			if i < 4 && looks > fewLooks {
				t.looks.Store(max(looks/2, fewLooks))
			}
			return nil
		}
		if t.inside {
			runtime.Gosched()
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return t.sleep(c, peer, flag, v)
}

// sleep is the rest of wait: it sleeps in slices, and looks at the team between them.
func (t *Team) sleep(c *transport.Call, peer int, flag *uint32, v uint32) error {
	start := time.Now()
	deadline := c.Deadline
	if deadline.IsZero() {
		deadline = start.Add(t.fallback)
	}
	nextLook := start.Add(slice)
	s := sleepers(flag)
	atomic.AddUint32(s, 1)
	defer atomic.AddUint32(s, ^uint32(0))
	for {
		now := atomic.LoadUint32(flag)
		if !before(now, v) {
			return nil
		}
		if err := t.Err(); err != nil {
			return err
		}
		left := time.Until(deadline)
		if left > 0 {
			// Not a raw call: the scheduler must be able to give the processor to other goroutines.
			ts := unix.NsecToTimespec(int64(min(left, slice)))
			unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(flag)), futexWait, uintptr(now), uintptr(unsafe.Pointer(&ts)), 0, 0)
		}
		if left > 0 && time.Now().Before(nextLook) {
			continue
		}
		nextLook = time.Now().Add(slice)
		f := t.gone(peer)
		if f == nil && left <= 0 {
			f = &failure{kind: timedOut, peer: peer, wait: time.Since(start)}
			if c.Kind != transport.Send && c.Kind != transport.Recv {
				f.peer = t.behind(peer)
			}
		}
		// A peer that did its part and went is no reason to fail.
		if f != nil && !reached(flag, v) {
			f.mine = c.Header
			return t.fail(f)
		}
	}
}

// behind is the rank that holds up a collective: the one with the least progress,
// and among equals the one that this rank waits for.
func (t *Team) behind(peer int) int {
	slowest := peer
	for r := range t.ranks {
		if r != t.rank && t.slower(r, slowest) {
			slowest = r
		}
	}
	return slowest
}

func (t *Team) slower(a, b int) bool {
	if x, y := t.lastEntered(a), t.lastEntered(b); x != y {
		return before(x, y)
	}
	for _, k := range []line{posted, taken, done} {
		if x, y := atomic.LoadUint32(t.flag(a, k)), atomic.LoadUint32(t.flag(b, k)); x != y {
			return before(x, y)
		}
	}
	return false
}
