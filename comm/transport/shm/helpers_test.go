package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// withHelpers has a rank share all jobs with two helpers, however few cores there are.
// It comes before the first long call.
func (t *Team) withHelpers() { t.helpers.n, t.helpers.worth = 2, 1 }

func TestThreads(t *testing.T) {
	set := func(from, to int) (s unix.CPUSet) {
		for c := from; c < to; c++ {
			s.Set(c)
		}
		return s
	}
	same := func(n int, s unix.CPUSet) (all []unix.CPUSet) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	for _, w := range []struct {
		name  string
		ranks []unix.CPUSet // the first is ours
		procs int
		want  int
	}{
		{"a core for each rank", same(2, set(0, 2)), 2, 1},
		{"fewer cores than ranks", same(4, set(0, 2)), 2, 1},
		{"one and a half", same(2, set(0, 3)), 3, 1},
		{"two cores for each", same(8, set(0, 16)), 16, 2},
		{"four cores for each", same(8, set(0, 32)), 32, 4},
		{"no more than the bound", same(2, set(0, 64)), 64, mostThreads},
		{"bound to a core", []unix.CPUSet{set(0, 1), set(1, 2)}, 4, 1},
		{"bound to cores of their own", []unix.CPUSet{set(0, 2), set(2, 4)}, 4, 2},
		{"two ranks in each half", []unix.CPUSet{set(0, 4), set(4, 8), set(0, 4), set(4, 8)}, 8, 2},
		{"a neighbour bound to one of ours", []unix.CPUSet{set(0, 2), set(1, 2)}, 2, 1},
		{"above the first 64", []unix.CPUSet{set(100, 104), set(100, 104)}, 8, 2},
		{"GOMAXPROCS", same(8, set(0, 32)), 8, 1},
		{"cores not known", same(2, set(0, 0)), 8, 1},
	} {
		if got := threads(&w.ranks[0], w.ranks, w.procs); got != w.want {
			t.Errorf("%s: %d threads, want %d", w.name, got, w.want)
		}
	}
}

// With helpers everything is as it is without.
func TestHelpersDoTheSame(t *testing.T) {
	for _, size := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			teamOf(t, size, func(t *Team) error {
				t.withHelpers()
				return errors.Join(allReduceMatrix(t, []int{1, 4097, 70003}), collectiveMatrix(t, []int{17, 70003}))
			})
		})
	}
}

// Sums that depend on their order have the same bits, and each block is done once, in
// place too.
func TestHelpersKeepTheOrder(t *testing.T) {
	const n, rounds = 1<<18 + 3, 12
	teamOf(t, 5, func(team *Team) error {
		arena, err := team.Alloc(4 * n)
		if err != nil {
			return err
		}
		src, alone := make([]byte, 4*n), make([]byte, 4*n)
		random := rand.New(rand.NewPCG(1, uint64(team.rank)))
		for i := range n {
			put(dtype.F32, src, i, random.NormFloat64())
		}
		for seq, buf := range [][]byte{alone, arena, arena} {
			if seq == 1 {
				team.withHelpers()
			}
			for range rounds {
				copy(buf, src)
				c := call(transport.AllReduce, transport.Sum, dtype.F32, seq)
				c.Count = n
				if err := team.AllReduce(c, buf); err != nil {
					return err
				}
				if !bytes.Equal(buf, alone) {
					return fmt.Errorf("other bits than without helpers")
				}
			}
		}
		return nil
	})
}

// A job wants no helper, one, or all.
func TestHelpersWanted(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		h := helpers{n: n, worth: worthBytes}
		for bytes, want := range map[int]int{0: 0, worthBytes - 1: 0, worthBytes: min(n, 1), manyTimes*worthBytes - 1: min(n, 1), manyTimes * worthBytes: n, 1 << 40: n} {
			if got := h.wanted(bytes); got != want {
				t.Errorf("%d of %d helpers for %d bytes, want %d", got, n, bytes, want)
			}
		}
	}
	// Who is not wanted is not called.
	teamOf(t, 1, func(team *Team) error {
		team.withHelpers()
		dst, src := make([]byte, 1<<20), bytes.Repeat([]byte{7}, 1<<20)
		for _, wanted := range []int{1, 2, 1} {
			number := team.helpers.number
			team.helpers.share(job{dsts: [][]byte{dst}, srcs: [][]byte{src}, pairs: true}, len(src), wanted)
			for i := range team.helpers.bells {
				if called := atomic.LoadUint32(&team.helpers.bells[i].flag[0]) > number; called != (i < wanted) {
					return fmt.Errorf("a job that wants %d helpers: helper %d is called: %v", wanted, i, called)
				}
			}
		}
		if !bytes.Equal(dst, src) {
			return fmt.Errorf("not all is copied")
		}
		return nil
	})
}

func asleep(team *Team) (n uint32) {
	for i := range team.helpers.bells {
		n += atomic.LoadUint32(sleepers(&team.helpers.bells[i].flag[0]))
	}
	return n
}

// Helpers that sleep are woken, by the next job and by Close.
func TestHelpersSleep(t *testing.T) {
	teamOf(t, 1, func(team *Team) error {
		team.withHelpers()
		dst, src := make([]byte, 1<<20), bytes.Repeat([]byte{7}, 1<<20)
		for round := range 3 {
			clear(dst)
			team.helpers.copies([][]byte{dst}, [][]byte{src})
			if !bytes.Equal(dst, src) {
				return fmt.Errorf("round %d: not all is copied", round)
			}
			for end := time.Now().Add(30 * time.Second); asleep(team) != 2; runtime.Gosched() {
				if time.Now().After(end) {
					return fmt.Errorf("round %d: the helpers do not go to sleep", round)
				}
			}
			// The rank does not: it leaves the blocks to who is woken.
			if round == 2 {
				return nil
			}
			clear(dst)
			team.helpers.offer(job{dsts: [][]byte{dst}, srcs: [][]byte{src}, pairs: true}, len(src), 2)
			for end := time.Now().Add(30 * time.Second); team.helpers.undone.Load() != 0; runtime.Gosched() {
				if time.Now().After(end) {
					return fmt.Errorf("round %d: the helpers do not wake up", round)
				}
			}
			if !bytes.Equal(dst, src) {
				return fmt.Errorf("round %d: the helpers have not copied all", round)
			}
		}
		return nil
	})
}
