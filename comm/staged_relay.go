package comm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// relay is what engines have in common that make a call in two places: on the caller's
// stream, and in a goroutine of the host. A call goes in pieces, numbered through all
// calls; numbers wrap. The two tell each other by words, in memory of the host that the
// GPU reaches, how far they are: streams wait for words, and the goroutine looks at them.
type relay struct {
	g     *Group
	dev   *cuda.Device
	what  string // the engine in words
	hand  hand
	words device.Buffer
	awake []int // the words for which streams wait

	enqueuing sync.Mutex    // held while a call is; guards what follows
	stream    *cuda.Stream  // of the call before
	made      uint32        // the last piece of that call
	latest    atomic.Uint32 // the last piece of which anything may have been enqueued

	mu  sync.Mutex // guards what follows
	err error      // of a call, or of an abort

	stop    chan struct{} // closed by end
	ending  sync.Once
	stopped chan struct{} // closed by the goroutine
}

const (
	// wordLeft is written by streams: the latest piece of a call that is through. The
	// engines have others, each on a line of its own.
	wordLeft  = 0
	wordBytes = 128

	firstPiece = 1
)

// newRelay makes one with so many words. Streams wait for those in awake.
func newRelay(g *Group, what string, words int, awake ...int) (*relay, error) {
	r := &relay{g: g, dev: g.o.gpu, what: what, hand: newHand(g), awake: awake, made: firstPiece, stop: make(chan struct{}), stopped: make(chan struct{})}
	r.latest.Store(firstPiece)
	var err error
	if r.words, err = r.dev.AllocHost(words * wordBytes); err != nil {
		return nil, err
	}
	r.set(wordLeft, firstPiece)
	return r, nil
}

func (r *relay) word(at int) *uint32 { return &device.View[uint32](r.words)[at/4] }

func (r *relay) addr(at int) uintptr { return r.words.Addr() + uintptr(at) }

func (r *relay) set(at int, piece uint32) { atomic.StoreUint32(r.word(at), piece) }

// reached says whether a word has come to a piece.
func (r *relay) reached(at int, piece uint32) bool {
	return int32(atomic.LoadUint32(r.word(at))-piece) >= 0
}

func (r *relay) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// fail keeps the first error, for routineWatch to find, and so the group.
func (r *relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// enqueue puts a call on a stream, behind the one before: calls use the engine's memory in
// their order, whatever stream they are on. put does the engine's part, with the last piece
// of the call before, and returns the last one of this call.
func (r *relay) enqueue(s *cuda.Stream, put func(before uint32) (last uint32)) error {
	r.enqueuing.Lock()
	defer r.enqueuing.Unlock()
	if err := r.failed(); err != nil {
		return err
	}
	if r.stream != nil && r.stream != s {
		r.hand.wait(s, r.addr(wordLeft), r.made)
	}
	last := put(r.made)
	r.hand.write(s, r.addr(wordLeft), last)
	if err := s.Err(); err != nil {
		return err
	}
	r.stream, r.made = s, last
	return nil
}

const (
	// spin is how long a goroutine looks at words without a pause.
	spin = 50 * time.Microsecond
	// glance is the longest pause between two looks.
	glance = 200 * time.Microsecond
)

// gaze paces looks at something that is to change: none waits at first, and all do a while
// after nothing has changed.
type gaze struct {
	since time.Time // of the last change
	pause time.Duration
}

func (l *gaze) changed() { *l = gaze{since: time.Now()} }

// again is called before another look. false: stop is closed. The pauses are the kernel's:
// where no goroutine runs, timers of Go's are late by up to a millisecond.
func (l *gaze) again(stop <-chan struct{}) bool {
	if time.Since(l.since) < spin {
		runtime.Gosched()
		return true
	}
	select {
	case <-stop:
		return false
	default:
	}
	l.pause = min(max(2*l.pause, spin/2), glance)
	nap(l.pause)
	return true
}

var errEnded = errors.New("the group's engine for memory of GPUs has ended")

// await waits until a stream has brought a word to a piece. No time bounds that: the work
// before the call may take as long as it likes.
func (r *relay) await(at int, piece uint32) error {
	look := gaze{since: time.Now()}
	for !r.reached(at, piece) {
		if !look.again(r.stop) {
			return errEnded
		}
	}
	return nil
}

func (r *relay) timeout() time.Duration {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.g.o.Timeout
}

// explain makes a timeout one of a call on the GPU, over a link.
func (r *relay) explain(c *call, link string, err error) error {
	late, ok := errors.AsType[*transport.TimeoutError](err)
	if !ok {
		return err
	}
	return &StuckError{TimeoutError: transport.TimeoutError{Peer: late.Peer, Call: c.wire, Wait: late.Wait},
		Rank: r.g.o.Rank, GPU: r.dev.String(), Link: link}
}

// end stops the goroutine and waits for it.
func (r *relay) end() error {
	r.ending.Do(func() { close(r.stop) })
	select {
	case <-r.stopped:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: a call that was aborted has not ended after %s", r.what, patience)
	}
}

// ahead is so far in front of the pieces that are under way that no stream waits any more.
const ahead = 1 << 29

// letGo lets the streams of an engine that has failed go on, and returns when they have
// left its memory.
func (r *relay) letGo() error {
	late := time.After(patience)
	for {
		for _, w := range r.awake {
			r.set(w, r.latest.Load()+ahead)
		}
		if r.through() {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			return fmt.Errorf("%s: copies that were aborted may still be on the GPU after %s", r.what, patience)
		}
	}
}

// through reports whether the streams have left the engine's memory, as far as that can be
// known: of a call whose stream failed while it was enqueued nothing tells.
func (r *relay) through() bool {
	if !r.enqueuing.TryLock() {
		return false
	}
	defer r.enqueuing.Unlock()
	return atomic.LoadUint32(r.word(wordLeft)) == r.latest.Load()
}

// calls is a queue of what the goroutine is to carry out, in the order of calls.
type calls[T any] struct {
	mu   sync.Mutex // guards what follows
	list []*T
	wake chan struct{} // holds a token when list is no longer empty
}

func newCalls[T any]() *calls[T] { return &calls[T]{wake: make(chan struct{}, 1)} }

func (q *calls[T]) put(c *T) {
	q.mu.Lock()
	q.list = append(q.list, c)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next is the oldest call, which it takes away, nil where there is none.
func (q *calls[T]) next() *T {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return nil
	}
	c := q.list[0]
	q.list[0] = nil
	q.list = q.list[1:]
	return c
}

// each hands f the calls, one after the other, until it fails or stop is closed.
func (q *calls[T]) each(stop <-chan struct{}, f func(*T) error) error {
	for {
		if c := q.next(); c != nil {
			if err := f(c); err != nil {
				return err
			}
			continue
		}
		select {
		case <-q.wake:
		case <-stop:
			return nil
		}
	}
}
