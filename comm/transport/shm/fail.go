package shm

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
)

// ErrClosed is what calls on a closed team fail with.
var ErrClosed = errors.New("shm: the team is closed")

// ErrAborted is inside the error of every rank after one has called Abort.
var ErrAborted = errors.New("aborted")

// errDied is inside the PeerError for a process that ended.
var errDied = errors.New("the process has ended")

// errLeft is inside the PeerError for a rank that closed the team too early.
var errLeft = errors.New("closed the group while others still use it")

type failureKind uint32

const (
	mismatched failureKind = iota + 1
	died
	left
	timedOut
	aborted
)

// failure is why a team is broken. The first one goes into the record of the
// control segment, so that all ranks give the same reason.
type failure struct {
	kind         failureKind
	rank, peer   int // of the team: who found it, and about whom
	mine, theirs transport.Header
	wait         time.Duration
	text         string
}

// Offsets within the record.
const (
	recordState  = 0 // 0 while all is well, 1 while the record is written, 2 afterwards
	recordKind   = 4
	recordRank   = 8
	recordPeer   = 12
	recordMine   = 16
	recordTheirs = recordMine + transport.HeaderSize
	recordWait   = recordTheirs + transport.HeaderSize
	recordText   = recordWait + 16
	textBytes    = 512
)

const (
	recordEmpty = iota
	recordBegun
	recordFull
)

// fail breaks the team for all ranks, unless it is broken already, and returns
// this rank's error.
func (t *Team) fail(f *failure) error {
	f.rank = t.rank
	if !atomic.CompareAndSwapUint32(t.word(recordState), recordEmpty, recordBegun) {
		if err := t.Err(); err != nil {
			return err
		}
		// Another rank writes the record in this moment, or died while it did.
		return t.keep(t.explain(f))
	}
	atomic.StoreUint32(t.word(recordKind), uint32(f.kind))
	atomic.StoreUint32(t.word(recordRank), uint32(f.rank))
	atomic.StoreUint32(t.word(recordPeer), uint32(f.peer))
	f.mine.Encode(t.mem[recordMine:])
	f.theirs.Encode(t.mem[recordTheirs:])
	atomic.StoreUint64(t.word64(recordWait), uint64(f.wait))
	n := copy(t.mem[recordText:recordText+textBytes], f.text)
	atomic.StoreUint32(t.word(recordWait+8), uint32(n))
	atomic.StoreUint32(t.word(recordState), recordFull)
	err := t.keep(t.explain(f))
	for r := range t.ranks {
		for _, k := range flagLines {
			wake(t.flag(r, k))
		}
	}
	return err
}

// recorded reads the record of the control segment, nil while there is none.
func (t *Team) recorded() *failure {
	if atomic.LoadUint32(t.word(recordState)) != recordFull {
		return nil
	}
	n := min(atomic.LoadUint32(t.word(recordWait+8)), textBytes)
	return &failure{
		kind:   failureKind(atomic.LoadUint32(t.word(recordKind))),
		rank:   int(atomic.LoadUint32(t.word(recordRank))),
		peer:   int(atomic.LoadUint32(t.word(recordPeer))),
		mine:   transport.Decode(t.mem[recordMine:]),
		theirs: transport.Decode(t.mem[recordTheirs:]),
		wait:   time.Duration(atomic.LoadUint64(t.word64(recordWait))),
		text:   string(t.mem[recordText : recordText+int(n)]),
	}
}

// explain is the failure as an error, with the ranks of the group.
func (t *Team) explain(f *failure) error {
	peer := t.members[f.peer]
	switch f.kind {
	case mismatched:
		return &transport.MismatchError{Rank: t.members[f.rank], Peer: peer, Mine: f.mine, Theirs: f.theirs}
	case died:
		return &transport.PeerError{Peer: peer, Host: t.host, Err: fmt.Errorf("%w during %s", errDied, f.mine)}
	case left:
		return &transport.PeerError{Peer: peer, Host: t.host, Err: fmt.Errorf("%w: %s", errLeft, f.mine)}
	case timedOut:
		return &transport.TimeoutError{Peer: peer, Call: f.mine, Wait: f.wait}
	case aborted:
		return &transport.PeerError{Peer: peer, Host: t.host, Err: fmt.Errorf("%w: %s", ErrAborted, f.text)}
	}
	return fmt.Errorf("shm: unknown failure %d in the record", f.kind)
}

// Err is why the team is broken, nil while it is not.
func (t *Team) Err() error {
	if e := t.broken.Load(); e != nil {
		return *e
	}
	if f := t.recorded(); f != nil {
		return t.keep(t.explain(f))
	}
	return nil
}

// keep makes err this rank's error, unless it has one.
func (t *Team) keep(err error) error {
	t.broken.CompareAndSwap(nil, &err)
	return *t.broken.Load()
}

// Abort breaks the team: calls under way and later ones fail on every rank, here
// with err and elsewhere with a PeerError that holds its text. It may be called at
// any time, from any goroutine.
func (t *Team) Abort(err error) {
	t.open.RLock()
	defer t.open.RUnlock()
	if t.mem == nil {
		return
	}
	t.keep(fmt.Errorf("%w: %w", ErrAborted, err))
	t.fail(&failure{kind: aborted, peer: t.rank, text: err.Error()})
}

// gone looks for ranks that will never do their part: those whose process ended,
// and those that closed the team and have not entered this rank's call, or are
// the one that it waits for.
func (t *Team) gone(awaited int) *failure {
	for r := range t.ranks {
		if r == t.rank || atomic.LoadUint32(t.word(t.lineOff(r, state)+joinedOff)) == 0 {
			continue
		}
		hasLeft := t.word(t.lineOff(r, state) + leftOff)
		alive := t.lock.held(r)
		switch {
		case atomic.LoadUint32(hasLeft) != 0:
			if r == awaited || before(t.lastEntered(r), t.ops.Load()) {
				return &failure{kind: left, peer: r}
			}
		case !alive:
			return &failure{kind: died, peer: r}
		}
	}
	return nil
}

// rankLock tells the living from the dead. Each rank locks the byte with its
// number in the file behind the control segment; the kernel drops the lock when
// the process ends, in whichever namespace and by whatever cause. The locks belong
// to open files, so each rank opens the file for itself.
type rankLock struct{ fd int }

func (l rankLock) take(rank int) error {
	return unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(rank), Len: 1})
}

func (l rankLock) held(rank int) bool {
	q := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(rank), Len: 1}
	if err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_GETLK, &q); err != nil {
		return true // nothing known: the deadline decides
	}
	return q.Type != unix.F_UNLCK
}
