package store

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

// maxBacklog bounds the bytes that one watch may have pending. A watcher further
// behind is ended with an error: dropping changes silently would be worse.
const maxBacklog = 64 << 20

// table holds every job's keys. mu guards all that hangs below it. Values are
// never modified in place, so they may be read after mu is released.
type table struct {
	mu   sync.Mutex
	jobs map[string]*job
}

type job struct {
	firstLive int64 // attempts below this one are retired
	spaces    map[int64]*space
}

// space holds the keys of one attempt of one job.
type space struct {
	revision uint64 // of the latest change
	entries  map[string]entry
	waiting  map[string]chan struct{} // closed once the key exists, or the attempt is retired
	watches  map[*watch]struct{}
}

type entry struct {
	value    []byte
	revision uint64
}

// watch is the server's side of one Watch call.
type watch struct {
	prefix  string
	pending []*storepb.Change
	bytes   int
	ended   error         // why no further change will come
	wake    chan struct{} // capacity 1: something to take
}

// enter finds the caller's space. The caller holds mu.
func (t *table) enter(sc *storepb.Scope) (*space, error) {
	if sc.GetJob() == "" || sc.GetAttempt() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "no job name, or attempt %d below 0", sc.GetAttempt())
	}
	if err := checkName("job name", sc.GetJob()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	j := t.jobs[sc.Job]
	if j == nil {
		j = &job{spaces: map[int64]*space{}}
		t.jobs[sc.Job] = j
	}
	if sc.Attempt < j.firstLive {
		return nil, stale(sc.Attempt, j.firstLive)
	}
	sp := j.spaces[sc.Attempt]
	if sp == nil {
		sp = &space{
			entries: map[string]entry{},
			waiting: map[string]chan struct{}{},
			watches: map[*watch]struct{}{},
		}
		j.spaces[sc.Attempt] = sp
	}
	return sp, nil
}

func stale(attempt, firstLive int64) error {
	return status.Errorf(codes.FailedPrecondition, "attempt %d; attempts from %d on are accepted", attempt, firstLive)
}

// put stores a value and tells waiters and watchers. The caller holds mu.
func (sp *space) put(key string, value []byte) {
	sp.revision++
	sp.entries[key] = entry{value, sp.revision}
	if ch := sp.waiting[key]; ch != nil {
		close(ch)
		delete(sp.waiting, key)
	}
	sp.publish(&storepb.Change{Key: key, Value: value, Revision: sp.revision})
}

func (sp *space) publish(c *storepb.Change) {
	for w := range sp.watches {
		if !strings.HasPrefix(c.Key, w.prefix) {
			continue
		}
		w.pending = append(w.pending, c)
		w.bytes += len(c.Key) + len(c.Value) + 128 // 128: about the struct itself
		if w.bytes > maxBacklog {
			w.end(status.Errorf(codes.ResourceExhausted,
				"the watcher is more than %d MiB of changes behind: read it faster", maxBacklog>>20))
			delete(sp.watches, w)
		}
		w.notify()
	}
}

func (w *watch) end(err error) {
	w.ended, w.pending, w.bytes = err, nil, 0
	w.notify()
}

func (w *watch) notify() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is already on its way
	}
}

func (t *table) set(sc *storepb.Scope, key string, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return err
	}
	sp.put(key, value)
	return nil
}

// get returns the value or, for one that waits, a channel that is closed when it is
// worth asking again.
func (t *table) get(sc *storepb.Scope, key string, wait bool) ([]byte, <-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return nil, nil, err
	}
	if e, ok := sp.entries[key]; ok {
		return e.value, nil, nil
	}
	if !wait {
		return nil, nil, status.Error(codes.NotFound, "no such key")
	}
	ch := sp.waiting[key]
	if ch == nil {
		ch = make(chan struct{})
		sp.waiting[key] = ch
	}
	return nil, ch, nil
}

func (t *table) add(sc *storepb.Scope, key string, delta int64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return 0, err
	}
	var old int64
	if e, ok := sp.entries[key]; ok {
		if old, err = strconv.ParseInt(string(e.value), 10, 64); err != nil {
			return 0, status.Errorf(codes.InvalidArgument, "the key holds %s, not a whole number", preview(e.value))
		}
	}
	if (delta > 0 && old > math.MaxInt64-delta) || (delta < 0 && old < math.MinInt64-delta) {
		return 0, status.Errorf(codes.InvalidArgument, "%d + %d overflows 64 bits", old, delta)
	}
	sum := old + delta
	sp.put(key, strconv.AppendInt(nil, sum, 10))
	return sum, nil
}

func (t *table) compareAndSet(sc *storepb.Scope, r *storepb.CompareAndSetRequest) (*storepb.CompareAndSetReply, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return nil, err
	}
	e, exists := sp.entries[r.Key]
	if exists != (r.Old != nil) || !bytes.Equal(e.value, r.Old) {
		return &storepb.CompareAndSetReply{Current: present(e.value, exists)}, nil
	}
	sp.put(r.Key, r.New)
	return &storepb.CompareAndSetReply{Swapped: true, Current: present(r.New, true)}, nil
}

// present keeps an empty value apart from no value: on the wire only nil is absent.
func present(v []byte, exists bool) []byte {
	if exists && v == nil {
		return []byte{}
	}
	return v
}

func (t *table) remove(sc *storepb.Scope, key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return err
	}
	if _, ok := sp.entries[key]; ok {
		delete(sp.entries, key)
		sp.revision++
		sp.publish(&storepb.Change{Key: key, Deleted: true, Revision: sp.revision})
	}
	return nil
}

// subscribe starts a watch with what exists, in the order in which it was written.
func (t *table) subscribe(sc *storepb.Scope, prefix string) (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sp, err := t.enter(sc)
	if err != nil {
		return nil, err
	}
	w := &watch{prefix: prefix, wake: make(chan struct{}, 1)}
	for key, e := range sp.entries {
		if strings.HasPrefix(key, prefix) {
			w.pending = append(w.pending, &storepb.Change{Key: key, Value: e.value, Revision: e.revision})
		}
	}
	slices.SortFunc(w.pending, func(a, b *storepb.Change) int { return cmp.Compare(a.Revision, b.Revision) })
	sp.watches[w] = struct{}{}
	w.notify()
	return w, nil
}

// take hands over what is pending, and the reason if nothing more will come.
func (t *table) take(w *watch) ([]*storepb.Change, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changes := w.pending
	w.pending, w.bytes = nil, 0
	return changes, w.ended
}

func (t *table) unsubscribe(sc *storepb.Scope, w *watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j := t.jobs[sc.Job]; j != nil {
		if sp := j.spaces[sc.Attempt]; sp != nil {
			delete(sp.watches, w)
		}
	}
}

// retire drops the attempts up to and including last, with all that waits on them.
func (t *table) retire(name string, last int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[name]
	if j == nil {
		j = &job{spaces: map[int64]*space{}}
		t.jobs[name] = j
	}
	if last < j.firstLive {
		return
	}
	j.firstLive = last + 1
	for attempt, sp := range j.spaces {
		if attempt >= j.firstLive {
			continue
		}
		for _, ch := range sp.waiting {
			close(ch)
		}
		for w := range sp.watches {
			w.end(stale(attempt, j.firstLive))
		}
		delete(j.spaces, attempt)
	}
}

// preview shows a value in an error message without flooding it.
func preview(v []byte) string {
	if len(v) <= 32 {
		return strconv.Quote(string(v))
	}
	return fmt.Sprintf("%q... (%d bytes)", v[:32], len(v))
}
