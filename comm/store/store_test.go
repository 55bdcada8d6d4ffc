package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is longer than anything here should take, so that a hang is a failure.
const patience = time.Minute

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func serve(t *testing.T) *Server {
	t.Helper()
	return serveWith(t, ServerOptions{Token: "secret"})
}

func serveWith(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, o)
	t.Cleanup(func() { s.Close() })
	return s
}

func dial(t *testing.T, s *Server, job string, attempt int) *Client {
	t.Helper()
	return dialWith(t, s, Options{Token: "secret", Job: job, Attempt: attempt, Host: "h"})
}

func dialWith(t *testing.T, s *Server, o Options) *Client {
	t.Helper()
	c, err := Dial(bounded(t), s.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, target error, parts ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error %v, want %v", err, target)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not name %q", err, p)
		}
	}
}

func TestSetGetDelete(t *testing.T) {
	c, ctx := dial(t, serve(t), "j", 0), bounded(t)
	_, err := c.Get(ctx, "a")
	wantErr(t, err, ErrNotFound, `get "a"`, `job "j"`, "attempt 0", "on h")
	for _, v := range [][]byte{[]byte("1"), {}, {0, 255}, bytes.Repeat([]byte{7}, MaxValue)} {
		must(t, c.Set(ctx, "a", v))
		got, err := c.Get(ctx, "a")
		must(t, err)
		if !bytes.Equal(got, v) {
			t.Fatalf("got %d bytes back for %d", len(got), len(v))
		}
	}
	must(t, c.Delete(ctx, "a"))
	must(t, c.Delete(ctx, "a"))
	_, err = c.Get(ctx, "a")
	wantErr(t, err, ErrNotFound)
}

func TestRefusals(t *testing.T) {
	c, ctx := dial(t, serve(t), "j", 0), bounded(t)
	wantErr(t, c.Set(ctx, "big", make([]byte, MaxValue+1)), ErrTooLarge, "4194305", "4194304")
	for _, key := range []string{"", strings.Repeat("k", MaxKey+1), "\xff"} {
		if err := c.Set(ctx, key, nil); err == nil {
			t.Errorf("key %q was taken", key)
		}
	}
	must(t, c.Set(ctx, "text", []byte("abc")))
	if _, err := c.Add(ctx, "text", 1); err == nil || !strings.Contains(err.Error(), `"abc"`) {
		t.Errorf("Add to text: %v", err)
	}
	must(t, c.Set(ctx, "max", []byte("9223372036854775807")))
	if _, err := c.Add(ctx, "max", 1); err == nil || !strings.Contains(err.Error(), "overflow") {
		t.Errorf("Add past the largest number: %v", err)
	}
	for _, o := range []Options{{Token: "secret"}, {Token: "secret", Job: "j", Attempt: -1}} {
		if _, err := Dial(ctx, c.addr, o); err == nil {
			t.Errorf("Dial took %+v", o)
		}
	}
}

// Every increment gives another sum, and each number is given once.
func TestConcurrentAdd(t *testing.T) {
	const clients, each = 4, 50
	s := serve(t)
	ctx := bounded(t)
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range clients {
		c := dial(t, s, "j", 0)
		wg.Go(func() {
			for range each {
				sum, err := c.Add(ctx, "n", 1)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[sum] {
					t.Errorf("sum %d twice", sum)
				}
				seen[sum] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	v, err := dial(t, s, "j", 0).Get(ctx, "n")
	must(t, err)
	if string(v) != fmt.Sprint(clients*each) {
		t.Fatalf("n = %s after %d increments", v, clients*each)
	}
}

func TestCompareAndSet(t *testing.T) {
	c, ctx := dial(t, serve(t), "j", 0), bounded(t)
	steps := []struct {
		old, new string
		noOld    bool
		swapped  bool
		current  any // nil: absent
	}{
		{old: "x", new: "y", swapped: false, current: nil},
		{old: "", new: "y", swapped: false, current: nil}, // an empty value is not "absent"
		{noOld: true, new: "", swapped: true, current: ""},
		{noOld: true, new: "b", swapped: false, current: ""},
		{old: "", new: "c", swapped: true, current: "c"},
		{old: "b", new: "d", swapped: false, current: "c"},
	}
	for i, st := range steps {
		old := []byte(st.old)
		if st.noOld {
			old = nil
		}
		cur, swapped, err := c.CompareAndSet(ctx, "k", old, []byte(st.new))
		must(t, err)
		if swapped != st.swapped || (cur == nil) != (st.current == nil) || (cur != nil && string(cur) != st.current) {
			t.Errorf("step %d: current %q, swapped %v, want %v, %v", i, cur, swapped, st.current, st.swapped)
		}
	}
}

func TestOneOfManyWinsCompareAndSet(t *testing.T) {
	s, ctx := serve(t), bounded(t)
	wins := make(chan string, 8)
	var wg sync.WaitGroup
	for i := range 8 {
		c := dial(t, s, "j", 0)
		wg.Go(func() {
			name := fmt.Sprint(i)
			cur, swapped, err := c.CompareAndSet(ctx, "leader", nil, []byte(name))
			if err != nil {
				t.Error(err)
			} else if swapped != (string(cur) == name) {
				t.Errorf("%s: swapped %v, but current %s", name, swapped, cur)
			} else if swapped {
				wins <- name
			}
		})
	}
	wg.Wait()
	if len(wins) != 1 {
		t.Fatalf("%d winners", len(wins))
	}
}

func TestWait(t *testing.T) {
	s, ctx := serve(t), bounded(t)
	a, b := dial(t, s, "j", 0), dial(t, s, "j", 0)
	got := make(chan string, 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			v, err := b.Wait(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			got <- string(v)
		})
	}
	waitUntil(t, func() bool { return s.blocked("j", 0, "k") })
	must(t, a.Set(ctx, "other", nil)) // does not release them
	must(t, a.Set(ctx, "k", []byte("v")))
	wg.Wait()
	if x, y := <-got, <-got; x != "v" || y != "v" {
		t.Fatalf("waited for %q, %q", x, y)
	}
}

// blocked tells whether a Wait for the key has reached the server.
func (s *Server) blocked(job string, attempt int64, key string) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	j := s.table.jobs[job]
	return j != nil && j.spaces[attempt] != nil && j.spaces[attempt].waiting[key] != nil
}

// watched tells how many watches the attempt has.
func (s *Server) watched(job string, attempt int64) int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.table.jobs[job].spaces[attempt].watches)
}

// waitUntil yields until cond holds; the state it asks for gives no event.
func waitUntil(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the condition did not come true")
		}
	}
}

func TestDeadlines(t *testing.T) {
	s := serve(t)
	c := dialWith(t, s, Options{Token: "secret", Job: "job7", Attempt: 3, Timeout: 50 * time.Millisecond})

	_, err := c.Wait(context.Background(), "never") // no deadline: Options.Timeout
	wantErr(t, err, context.DeadlineExceeded, `wait "never"`, `job "job7"`, "attempt 3", s.Addr().String(), "after ", "ms")

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = c.Wait(ctx, "never")
	wantErr(t, err, context.DeadlineExceeded)

	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = c.Wait(ctx, "never")
	wantErr(t, err, context.Canceled)

	w, err := c.Watch(context.Background(), "p")
	must(t, err)
	_, err = w.Next(context.Background())
	wantErr(t, err, context.DeadlineExceeded)
	must(t, c.Set(bounded(t), "p1", nil))
	ch, err := w.Next(bounded(t)) // the watch has survived the timeout
	must(t, err)
	if ch.Key != "p1" {
		t.Fatalf("change of %q", ch.Key)
	}
}

func TestJobsAndAttemptsAreApart(t *testing.T) {
	s, ctx := serve(t), bounded(t)
	// "a" + "1/k" and "a/1" + "k" would meet if the names were joined as text.
	clients := []*Client{dial(t, s, "a", 0), dial(t, s, "a", 1), dial(t, s, "b", 0), dial(t, s, "a/1", 0)}
	for i, c := range clients {
		must(t, c.Set(ctx, "k", []byte{byte(i)}))
		must(t, c.Set(ctx, "1/k", []byte{byte(i)}))
	}
	for i, c := range clients {
		for _, key := range []string{"k", "1/k"} {
			v, err := c.Get(ctx, key)
			must(t, err)
			if v[0] != byte(i) {
				t.Errorf("client %d reads the %s of %d", i, key, v[0])
			}
		}
	}
}

func TestGoroutinesEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		s := Serve(l, ServerOptions{})
		defer s.Close()
		c, err := Dial(bounded(t), l.Addr().String(), Options{Job: "j"})
		must(t, err)
		w, err := c.Watch(context.Background(), "")
		must(t, err)
		for range 100 { // more than the watcher takes unread
			must(t, c.Set(bounded(t), "k", nil))
		}
		must(t, c.Close())
		must(t, c.Close())
		for err = nil; err == nil; _, err = w.Next(bounded(t)) {
		}
		wantErr(t, err, ErrClosed)
		wantErr(t, c.Set(bounded(t), "k", nil), ErrClosed)
	}()
	waitUntil(t, func() bool { return runtime.NumGoroutine() <= before })
}

// The whole of a rendezvous: start, join, first key.
func BenchmarkServeDialSet(b *testing.B) {
	for b.Loop() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := Serve(l, ServerOptions{Token: "t"})
		c, err := Dial(context.Background(), l.Addr().String(), Options{Token: "t", Job: "j"})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Set(context.Background(), "k", []byte("v")); err != nil {
			b.Fatal(err)
		}
		c.Close()
		s.Close()
	}
}

// Nothing in a start waits for a clock: as soon as the machine lets it, it is fast.
func TestStartIsFast(t *testing.T) {
	const fast = 50 * time.Millisecond
	took := time.Hour
	for end := time.Now().Add(patience); took > fast && time.Now().Before(end); {
		start := time.Now()
		c := dial(t, serve(t), "j", 0)
		must(t, c.Set(bounded(t), "k", nil))
		took = min(took, time.Since(start))
	}
	if took > fast {
		t.Errorf("of many starts, with join and first Set, the fastest took %s; want %s", took, fast)
	}
}
