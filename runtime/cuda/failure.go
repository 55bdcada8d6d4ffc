package cuda

import "sync"

// links is who waits for whom, so that an error reaches every stream whose work
// may build on what a failed one left behind. A GPU does not know of errors that
// the host declares, such as a collective whose peer is gone.
type links struct {
	mu      sync.Mutex
	waiters map[*Stream]*Event   // streams that wait for this one, and the latest event of it they wait for
	awaited map[*Stream]struct{} // streams whose waiters hold this one
}

func (l *links) init() {
	l.waiters, l.awaited = map[*Stream]*Event{}, map[*Stream]struct{}{}
}

// Fail gives the stream its error, unless it has one. Streams that wait for an
// event of s which the host has not seen reached fail with it too. Call it before
// the work that failed is let go on, by an abort say: then nothing that waits for
// that work starts on its results unnoticed.
func (s *Stream) Fail(err error) {
	if err == nil || !s.failed.CompareAndSwap(nil, &err) {
		return
	}
	s.links.mu.Lock()
	waiters := s.links.waiters
	s.links.waiters = map[*Stream]*Event{}
	s.links.mu.Unlock()
	for w, e := range waiters {
		if !e.reached.Load() {
			w.Fail(err)
		}
	}
}

// follow makes the error of e's stream reach s, which waits for e.
func (s *Stream) follow(e *Event) {
	of := e.stream
	s.links.mu.Lock()
	s.links.awaited[of] = struct{}{}
	s.links.mu.Unlock()

	// Either Fail finds s among the waiters, or its error is seen here.
	of.links.mu.Lock()
	err := of.Err()
	if err == nil {
		of.links.waiters[s] = e
	}
	of.links.mu.Unlock()
	if err != nil {
		s.Fail(err)
	}
}

// leave takes s, whose work is done, out of the lists.
func (l *links) leave(s *Stream) {
	l.mu.Lock()
	awaited := l.awaited
	l.init()
	l.mu.Unlock()
	for of := range awaited {
		of.links.mu.Lock()
		delete(of.links.waiters, s)
		of.links.mu.Unlock()
	}
}
