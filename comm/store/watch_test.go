package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

func TestWatchStartsWithWhatExistsAndKeepsOrder(t *testing.T) {
	s, ctx := serve(t), bounded(t)
	c := dial(t, s, "j", 0)
	for _, key := range []string{"p/z", "p/a", "q", "p/m"} {
		must(t, c.Set(ctx, key, []byte(key)))
	}
	must(t, c.Delete(ctx, "p/m"))
	must(t, c.Set(ctx, "p/z", []byte("again"))) // now the latest of the two that exist

	w, err := c.Watch(ctx, "p/")
	must(t, err)
	defer w.Close()
	// The second change of p/a: until it has been seen, the watch may not have begun.
	expect(t, w, "p/a=p/a", "p/z=again")
	must(t, c.Set(ctx, "q", nil)) // not under the prefix
	must(t, c.Set(ctx, "p/a", []byte("1")))
	must(t, c.Set(ctx, "p/a", []byte("2")))
	must(t, c.Delete(ctx, "p/a"))
	_, err = c.Add(ctx, "p/n", 5)
	must(t, err)
	_, _, err = c.CompareAndSet(ctx, "p/n", []byte("5"), []byte("6"))
	must(t, err)
	expect(t, w, "p/a=1", "p/a=2", "p/a deleted", "p/n=5", "p/n=6")
}

func expect(t *testing.T, w *Watcher, want ...string) {
	t.Helper()
	var last uint64
	for i, s := range want {
		c, err := w.Next(bounded(t))
		must(t, err)
		got := c.Key + "=" + string(c.Value)
		if c.Deleted {
			got = c.Key + " deleted"
		}
		if got != s {
			t.Fatalf("change %d is %q, want %q", i, got, s)
		}
		if c.Revision <= last {
			t.Fatalf("revision %d after %d", c.Revision, last)
		}
		last = c.Revision
	}
}

// Whenever it begins, a watch shows each writer's values in order up to the last,
// none left out after the first that it shows.
func TestWatchUnderConcurrentWriters(t *testing.T) {
	const writers, each = 4, 200
	s, ctx := serve(t), bounded(t)
	var wg sync.WaitGroup
	for i := range writers {
		c := dial(t, s, "j", 0)
		wg.Go(func() {
			for range each {
				if _, err := c.Add(ctx, fmt.Sprint("w", i), 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	w, err := dial(t, s, "j", 0).Watch(ctx, "w")
	must(t, err)
	seen := map[string]int{}
	var last uint64
	for finished := 0; finished < writers; {
		c, err := w.Next(ctx)
		must(t, err)
		var n int
		if _, err := fmt.Sscan(string(c.Value), &n); err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[c.Key]; ok && n != before+1 {
			t.Fatalf("%s went from %d to %d", c.Key, before, n)
		}
		if c.Revision <= last {
			t.Fatalf("revision %d after %d", c.Revision, last)
		}
		seen[c.Key], last = n, c.Revision
		if n == each {
			finished++
		}
	}
	wg.Wait()
}

func TestWatchEndsOnce(t *testing.T) {
	s := serve(t)
	c := dial(t, s, "j", 0)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.Watch(ctx, "")
	must(t, err)
	cancel()
	_, err = w.Next(bounded(t))
	wantErr(t, err, context.Canceled)

	w, err = c.Watch(bounded(t), "")
	must(t, err)
	must(t, c.Set(bounded(t), "k", nil))
	if _, err := w.Next(bounded(t)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	_, err = w.Next(bounded(t))
	wantErr(t, err, ErrClosed)
	waitUntil(t, func() bool { return s.watched("j", 0) == 0 }) // the server has let go of both
}

// A watcher that falls too far behind is told so, and nobody else is held up.
func TestSlowWatcherIsEnded(t *testing.T) {
	tab := &table{jobs: map[string]*job{}}
	sc := &storepb.Scope{Job: "j"}
	slow, err := tab.subscribe(sc, "big")
	must(t, err)
	other, err := tab.subscribe(sc, "small")
	must(t, err)
	value := make([]byte, MaxValue)
	for range maxBacklog/MaxValue + 1 {
		must(t, tab.set(sc, "big", value))
	}
	if changes, err := tab.take(slow); len(changes) != 0 || status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("slow watcher: %d changes, error %v", len(changes), err)
	}
	must(t, tab.set(sc, "small", nil))
	if changes, err := tab.take(other); len(changes) != 1 || err != nil {
		t.Fatalf("other watcher: %d changes, error %v", len(changes), err)
	}
}

func TestRetire(t *testing.T) {
	for name, retire := range map[string]func(*testing.T, *Server, *Client){
		"server": func(_ *testing.T, s *Server, _ *Client) { s.Retire("j", 1) },
		"client": func(t *testing.T, _ *Server, c *Client) { must(t, c.Retire(bounded(t))) },
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := serve(t), bounded(t)
			old, older, next := dial(t, s, "j", 1), dial(t, s, "j", 0), dial(t, s, "j", 2)
			other := dial(t, s, "k", 1)
			for _, c := range []*Client{old, next, other} {
				must(t, c.Set(ctx, "kept", []byte("v")))
			}
			w, err := old.Watch(ctx, "x")
			must(t, err)
			waited := make(chan error, 1)
			go func() { _, err := old.Wait(ctx, "x"); waited <- err }()
			waitUntil(t, func() bool { return s.blocked("j", 1, "x") && s.watched("j", 1) == 1 })

			retire(t, s, old)
			wantErr(t, <-waited, ErrStaleAttempt, "attempt 1", "from 2 on")
			_, err = w.Next(ctx)
			wantErr(t, err, ErrStaleAttempt)
			for _, c := range []*Client{old, older} {
				calls := map[string]func() error{
					"set":    func() error { return c.Set(ctx, "kept", nil) },
					"get":    func() error { _, err := c.Get(ctx, "kept"); return err },
					"wait":   func() error { _, err := c.Wait(ctx, "kept"); return err },
					"add":    func() error { _, err := c.Add(ctx, "n", 1); return err },
					"cas":    func() error { _, _, err := c.CompareAndSet(ctx, "n", nil, nil); return err },
					"delete": func() error { return c.Delete(ctx, "kept") },
					"watch": func() error {
						w, err := c.Watch(ctx, "")
						if err == nil {
							_, err = w.Next(ctx)
						}
						return err
					},
				}
				for op, call := range calls {
					if err := call(); !errors.Is(err, ErrStaleAttempt) {
						t.Errorf("%s of attempt %d: %v", op, c.o.Attempt, err)
					}
				}
			}
			_, err = Dial(ctx, s.Addr().String(), Options{Token: "secret", Job: "j", Attempt: 1})
			wantErr(t, err, ErrStaleAttempt)
			must(t, old.Retire(ctx)) // again: no error
			s.Retire("j", 0)         // an earlier one: no step back
			for _, c := range []*Client{next, other} {
				if v, err := c.Get(ctx, "kept"); err != nil || string(v) != "v" {
					t.Errorf("job %s, attempt %d lost its key: %q, %v", c.o.Job, c.o.Attempt, v, err)
				}
			}
		})
	}
}
