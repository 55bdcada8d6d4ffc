package dma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// byCopies makes a call by the copy engines.
func (t *Team) byCopies(s *cuda.Stream, c *Call) error {
	switch c.Kind {
	case transport.AllReduce:
		return t.AllReduce(s, c.To, c.DType, c.Op == transport.Avg)
	case transport.ReduceScatter:
		return t.ReduceScatter(s, c.To, c.From, c.DType, c.Op == transport.Avg)
	case transport.AllGather:
		return t.AllGather(s, c.To, c.From)
	case transport.Broadcast:
		return t.Broadcast(s, c.To, int(c.Root))
	}
	return t.AllToAll(s, c.To, c.From)
}

// Copy engines and kernels by turns, on ranks that run at their own pace. Counters,
// addresses and what goes where are real, and the additions too.
func TestCopiesEmulated(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			teams := emulated(t, n)
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				const most = 4096
				s, plain, host, free, err := room(team, 4*n*4*most)
				if err != nil {
					return err
				}
				ctx := t.Context()
				memory, err := team.Alloc(ctx, plain.Len())
				if err != nil {
					return err
				}
				k := 0
				for _, kind := range []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.Broadcast, transport.AllToAll} {
					for _, count := range []int{8, 1000, most} {
						for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
							k++
							c := try{kind: kind, dt: dt, count: count, root: k % n, inPlace: kind == transport.AllReduce || k/2%2 == 0, op: transport.Op(k / 3 % 2 * int(transport.Avg))}
							if n == 3 {
								c.op = transport.Sum // means by multiplication round otherwise
							}
							if err := c.run(team, s, memory, host, team.byCopies); err != nil {
								return errors.Join(err, team.Abort(err, time.Minute))
							}
							c.inPlace = false
							if err := c.run(team, s, plain, host, team.Exchange); err != nil {
								return errors.Join(err, team.Abort(err, time.Minute))
							}
						}
					}
				}
				return free()
			})
		})
	}
}

// A rank whose peer makes no call waits, in a kernel or for a copy, until Abort. Of a
// kernel it is known for whom it waits.
func TestAbortEmulated(t *testing.T) {
	for name, c := range map[string]struct {
		limits limits
		call   func(*Team, *cuda.Stream, *Call) error
	}{
		"marked":   {limits{marked: 1 << 20}, (*Team).Exchange},
		"flagged":  {limits{oneShot: 1 << 20}, (*Team).Exchange},
		"two-shot": {limits{}, (*Team).Exchange},
		"copies":   {limits{}, (*Team).byCopies},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 3
			teams := emulated(t, n)
			called, waits := make(chan struct{}), make(chan struct{})
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				team.limits = c.limits
				memory, err := team.Alloc(t.Context(), 1<<12)
				if err != nil {
					return err
				}
				s, err := newStream(team.d, "comm")
				if err != nil {
					return err
				}
				h := transport.Header{Kind: transport.AllReduce, DType: dtype.F32, Root: -1, Count: 1 << 10}
				call := func() error { return c.call(team, s, &Call{Header: h, To: memory, From: memory}) }
				switch rank {
				case 0:
					err = call() // it returns when rank 1 has aborted this one
					close(called)
				case 1:
					for teams[0].enqueuing.TryLock() { // until rank 0 is in its call
						teams[0].enqueuing.Unlock()
					}
					if name != "copies" {
						if behind := listen(teams[0]); behind == 0 {
							return fmt.Errorf("rank 0 waits for rank %d", behind)
						}
					}
					close(waits)
					err = teams[0].Abort(errors.New("the test says so"), time.Minute)
					<-called
					for _, r := range []int{1, 2} {
						err = errors.Join(err, teams[r].Abort(errors.New("the test says so"), time.Minute))
					}
				case 2:
					<-waits
				}
				if err != nil {
					return err
				}
				<-called
				if rank == 0 {
					if err := call(); err == nil {
						return errors.New("a call behind Abort was accepted")
					}
				}
				return s.Close()
			})
		})
	}
}

// A GPU whose writes or reads go elsewhere, or whose bits flip, is named with the other
// one, on all ranks, before the team is there.
func TestGPUsThatLie(t *testing.T) {
	const n = 3
	for name, c := range map[string]struct {
		before, between func(teams []*Team)
		want            string
	}{
		"writes go elsewhere": {before: func(teams []*Team) {
			b := teams[1].regions[0]
			b.ranks[2] = b.ranks[0]
		}, between: func(teams []*Team) {
			teams[1].regions[0].ranks[2] = teams[2].regions[0].own
		}, want: "rank 2: the GPUs exchange wrong data: rank 1 on GPU GPU-00112233-4455-6677-8899-aabbccddee01: what it wrote to rank 2"},
		"reads come from elsewhere": {between: func(teams []*Team) {
			b := teams[1].regions[0]
			b.ranks[2] = b.ranks[0]
		}, want: "rank 1: the GPUs exchange wrong data: rank 2 on GPU GPU-00112233-4455-6677-8899-aabbccddee02: what is read from it by rank 1"},
		"a bit flips": {between: func(teams []*Team) {
			view(written(teams[2].regions[0].own, 1))[patternBytes-1] ^= 4
		}, want: "rank 2: the GPUs exchange wrong data: rank 1 on GPU GPU-00112233-4455-6677-8899-aabbccddee01: what it wrote to rank 2"},
	} {
		t.Run(name, func(t *testing.T) {
			teams := emulated(t, n)
			if c.before != nil {
				c.before(teams)
			}
			greetings := make([]*greeting, n)
			errs := make([]error, n)
			again := newBoard(n)
			step := func(name string, f func(h *greeting, ctx context.Context) error) {
				ranks(t, n, func(rank int) error {
					errs[rank] = errors.Join(errs[rank], teams[rank].agree(t.Context(), name, f(greetings[rank], t.Context())))
					return nil
				})
			}
			for rank, team := range teams {
				s, err := newStream(team.d, "hello")
				if err != nil {
					t.Fatal(err)
				}
				host, err := team.d.AllocHost(patternBytes)
				if err != nil {
					t.Fatal(err)
				}
				team.exchange = again.exchange(rank)
				greetings[rank] = &greeting{t: team, s: s, host: host, b: team.regions[0]}
				clear(view(team.regions[0].own))
			}
			step("written", (*greeting).write)
			if c.between != nil {
				c.between(teams)
			}
			step("read", (*greeting).read)
			for rank, err := range errs {
				if !errors.Is(err, ErrWrongData) || !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("rank %d: %v\nwant ... %s", rank, err, c.want)
				}
			}
			for rank, h := range greetings {
				if err := errors.Join(h.s.Close(), teams[rank].d.Free(h.host)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
