package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Ranks that call different things all learn of it, with both calls, and the team
// is broken from then on.
func TestMismatchReachesEveryRank(t *testing.T) {
	base := call(transport.AllReduce, transport.Sum, dtype.F32, 5)
	base.Count = 10000
	for name, change := range map[string]func(c *transport.Call){
		"count": func(c *transport.Call) { c.Count = 9999 },
		"type":  func(c *transport.Call) { c.DType = dtype.I32 },
		"op":    func(c *transport.Call) { c.Op = transport.Max },
		"seq":   func(c *transport.Call) { c.Seq = 6 },
		"group": func(c *transport.Call) { c.Group = 8 },
		"kind":  func(c *transport.Call) { c.Kind = transport.Barrier },
	} {
		errs := everyRank(t, 3, func(team *Team) error {
			c := base
			if team.rank == 1 {
				change(&c)
			}
			buf := make([]byte, c.Count*4)
			var err error
			if c.Kind == transport.Barrier {
				err = team.Barrier(c)
			} else {
				err = team.AllReduce(c, buf)
			}
			if again := team.AllReduce(base, make([]byte, base.Count*4)); again == nil || team.Err() == nil {
				return errors.New("a broken team works again")
			}
			return err
		})
		for r, err := range errs {
			var m *transport.MismatchError
			if !errors.As(err, &m) {
				t.Errorf("%s: rank %d: %v", name, r, err)
				continue
			}
			if m.Rank != 11 && m.Peer != 11 || m.Mine == m.Theirs {
				t.Errorf("%s: rank %d: the error does not name rank 11: %v", name, r, err)
			}
		}
	}
}

func TestMessageMismatch(t *testing.T) {
	errs := everyRank(t, 2, func(team *Team) error {
		c := call(transport.Send, transport.Sum, dtype.F32, team.rank*100)
		c.Count = 3
		if team.rank == 0 {
			if err := team.Send(c, 1, make([]byte, 12)); err != nil {
				return err
			}
			return team.Barrier(call(transport.Barrier, transport.Sum, dtype.U8, 1))
		}
		c.Kind, c.Count = transport.Recv, 4
		return team.Recv(c, 0, make([]byte, 16))
	})
	for r, err := range errs {
		var m *transport.MismatchError
		if !errors.As(err, &m) || m.Rank != 11 || m.Peer != 10 || m.Mine.Count != 4 || m.Theirs.Count != 3 {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Two ranks wait for a third that stays away: all that call name it.
func TestDeadlineNamesTheRankThatIsBehind(t *testing.T) {
	release := make(chan struct{})
	errs := everyRank(t, 3, func(team *Team) error {
		if team.rank == 2 {
			<-release
			return team.Err()
		}
		if team.rank == 0 {
			defer close(release)
		}
		c := call(transport.AllReduce, transport.Sum, dtype.F32, 1)
		c.Count = 100000
		if team.rank == 0 {
			if err := team.awaitEntry(1); err != nil { // that one is not behind
				return err
			}
			c.Deadline = time.Now()
		}
		return team.AllReduce(c, make([]byte, 400000))
	})
	for r, err := range errs {
		var e *transport.TimeoutError
		if !errors.As(err, &e) || e.Peer != 12 || e.Call.Seq != 1 || !e.Timeout() {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Rank 0 waits for 1, which itself waits for 2: the error names 2.
func TestBehindIsTheRankWithTheLeastProgress(t *testing.T) {
	l := newLayout(4)
	team := &Team{control: control{layout: l, mem: make([]byte, l.size())}}
	set := func(rank int, k line, v uint32) { *team.flag(rank, k) = v }
	check := func(want int) {
		t.Helper()
		if got := team.behind(1); got != want {
			t.Errorf("rank %d is behind, want %d", got, want)
		}
	}
	for r := range 4 {
		set(r, entered0, 8)
		set(r, entered1, 7)
	}
	check(1) // all alike: the one that is waited for
	set(2, entered0, 6)
	check(2)
	set(2, entered0, 8)
	for _, k := range []line{posted, taken, done} {
		for r := range 4 {
			set(r, k, 5)
		}
		set(3, k, 4)
		check(3)
		set(3, k, 5)
	}
	for r := range 4 { // numbers that wrap
		set(r, posted, 2)
	}
	set(2, posted, 0xffffffff)
	check(2)
}

func TestTimeoutBoundsCallsWithoutDeadline(t *testing.T) {
	over := make(chan struct{})
	errs := everyRank(t, 2, func(team *Team) error {
		if team.rank == 1 {
			<-over
			return nil
		}
		defer close(over)
		team.fallback = 50 * time.Millisecond
		return team.Barrier(transport.Call{Header: transport.Header{Kind: transport.Barrier, Root: -1}})
	})
	var e *transport.TimeoutError
	if !errors.As(errs[0], &e) || errs[1] != nil {
		t.Errorf("%v", errs)
	}
}

func TestAbortReachesWaitingRanks(t *testing.T) {
	why := errors.New("loss is not a number")
	errs := everyRank(t, 3, func(team *Team) error {
		if team.rank == 1 {
			team.Abort(why)
			return team.Barrier(call(transport.Barrier, 0, dtype.U8, 1))
		}
		return team.Barrier(call(transport.Barrier, 0, dtype.U8, 1))
	})
	for r, err := range errs {
		if !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), why.Error()) {
			t.Errorf("rank %d: %v", r, err)
		}
		var p *transport.PeerError
		if r == 1 && !errors.Is(err, why) || r != 1 && (!errors.As(err, &p) || p.Peer != 11) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestCloseEndsCallsOfOthersAndOfItsOwn(t *testing.T) {
	errs := everyRank(t, 3, func(team *Team) error {
		switch team.rank {
		case 1:
			return team.Close()
		case 2: // closed while it waits
			closed := make(chan error)
			go func() { closed <- team.Close() }()
			err := team.Barrier(call(transport.Barrier, 0, dtype.U8, 1))
			if e := <-closed; e != nil {
				return e
			}
			return err
		}
		return team.Barrier(call(transport.Barrier, 0, dtype.U8, 1))
	})
	var p *transport.PeerError
	if !errors.As(errs[0], &p) || !errors.Is(errs[0], errLeft) {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] != nil {
		t.Errorf("rank 1: %v", errs[1])
	}
	if !errors.Is(errs[2], ErrClosed) && !errors.Is(errs[2], errLeft) {
		t.Errorf("rank 2: %v", errs[2])
	}
}

// A rank that has done its part may close while others still finish theirs.
func TestCloseAfterTheLastCallHurtsNobody(t *testing.T) {
	for range 20 {
		for r, err := range everyRank(t, 4, func(team *Team) error {
			c := call(transport.AllReduce, transport.Sum, dtype.F32, 1)
			c.Count = 20000
			return team.AllReduce(c, make([]byte, 80000))
		}) {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
	}
}

// Want of memory is an error on every rank, and the team goes on.
func TestAllocWithoutRoom(t *testing.T) {
	teamOf(t, 2, func(team *Team) error {
		for range 3 {
			if _, err := team.Alloc(1 << 42); err == nil || !strings.Contains(err.Error(), "bytes free") {
				return fmt.Errorf("4 TB: %v", err)
			}
		}
		b, err := team.Alloc(1 << 16)
		if err != nil {
			return err
		}
		for i, x := range b {
			if x != 0 {
				return fmt.Errorf("byte %d is not zero", i)
			}
		}
		return nil
	})
}

func TestAvailableHeedsControlGroups(t *testing.T) {
	root := t.TempDir() + "/"
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(n int64) {
		t.Helper()
		if got, err := available(root); err != nil || got != n {
			t.Errorf("available is %d, %v; want %d", got, err, n)
		}
	}
	write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
	want(8000 << 10)
	write("proc/self/cgroup", "0::/job/worker\n")
	want(8000 << 10)
	write("sys/fs/cgroup/job/worker/memory.max", "max\n")
	write("sys/fs/cgroup/job/worker/memory.current", "5\n")
	want(8000 << 10)
	write("sys/fs/cgroup/job/memory.max", "1000000\n")
	write("sys/fs/cgroup/job/memory.current", "400000\n")
	want(600000)
	write("sys/fs/cgroup/memory.max", "1000\n")
	write("sys/fs/cgroup/memory.current", "2000\n")
	want(0)
}

// joinWithoutTheLast lets three ranks join, of which the last only fetches the
// memory. Its error is what the others say that is not about rank 12.
func joinWithoutTheLast(t *testing.T, within time.Duration) error {
	exchange := newBoard()
	errs := make([]error, 3)
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			o := Options{Rank: r, Size: 3, Ranks: groupRanks(3), Key: "k", Exchange: exchange, Timeout: within}
			if r == 2 {
				var fd int
				if fd, errs[r] = follow(t.Context(), o); errs[r] == nil {
					unix.Close(fd)
				}
				return
			}
			_, err := Join(t.Context(), o)
			var e *transport.TimeoutError
			if !errors.As(err, &e) || e.Peer != 12 {
				errs[r] = fmt.Errorf("rank %d says %w", 10+r, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func TestJoinFailsInTime(t *testing.T) {
	options := func(rank int, b *board) Options {
		return Options{Rank: rank, Size: 2, Ranks: groupRanks(2), Key: "k", Exchange: b, Timeout: 100 * time.Millisecond}
	}
	if _, err := Join(t.Context(), options(0, newBoard())); err == nil || !strings.Contains(err.Error(), "rank 11") {
		t.Errorf("nobody came: %v", err)
	}
	if _, err := Join(t.Context(), options(1, newBoard())); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody leads: %v", err)
	}
	b := newBoard()
	b.Set(t.Context(), "k", []byte(errorPrefix+"no room"))
	told := options(1, b)
	told.Timeout = 20 * time.Second
	if _, err := Join(t.Context(), told); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("rank 0 failed: %v", err)
	}
	// Rank 2 fetches the memory and is not heard of again: the others name it. How long
	// rank 1 takes to come is up to the machine.
	for within := 300 * time.Millisecond; ; within *= 2 {
		err := joinWithoutTheLast(t, within)
		if err == nil {
			break
		}
		if within > 10*time.Second {
			t.Errorf("rank 12 is lost: %v", err)
			break
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the job ends")
	cancel(why)
	if _, err := Join(ctx, options(0, newBoard())); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	for _, o := range []Options{{Size: 0}, {Size: 65}, {Size: 2, Rank: 2}, {Size: 1, Ranks: []int{0}}, {Size: 2, Ranks: []int{0, 1}, Timeout: 1}} {
		if _, err := Join(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
