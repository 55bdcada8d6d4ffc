package dma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"github.com/gorun-dev/gorun/runtime/vec"
)

// board is an Exchange between goroutines.
type board struct {
	mu   sync.Mutex
	cond *sync.Cond
	said map[string][][]byte
	n    int
}

func newBoard(n int) *board {
	b := &board{said: map[string][][]byte{}, n: n}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *board) exchange(rank int) Exchange {
	return func(ctx context.Context, key string, mine []byte) ([][]byte, error) {
		stop := context.AfterFunc(ctx, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.cond.Broadcast()
		})
		defer stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.said[key] == nil {
			b.said[key] = make([][]byte, b.n)
		}
		b.said[key][rank] = append([]byte{}, mine...)
		b.cond.Broadcast()
		for {
			full := true
			for _, s := range b.said[key] {
				full = full && s != nil
			}
			if full {
				return b.said[key], nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			b.cond.Wait()
		}
	}
}

// onGPUs calls f for each of n ranks, each with a GPU and the team of all.
func onGPUs(t testing.TB, n int, f func(rank int, d *cuda.Device, team *Team) error) {
	t.Helper()
	if have, err := cuda.Count(); err != nil || have < n {
		testenv.Skip(t, fmt.Sprintf("gpu:%d", n), fmt.Sprintf("the host shows %d GPUs (%v)", have, err))
	}
	b := newBoard(n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			d, err := cuda.Open(rank)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			team, err := Join(ctx, d, Options{Rank: rank, Size: n, Exchange: b.exchange(rank)})
			if err == nil {
				err = f(rank, d, team)
			}
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			if team != nil {
				if err := team.Close(); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
	all.Wait()
}

// values are small integers, whose sums are exact in every type.
func values(rank, n int) []float32 {
	r := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.IntN(100) - 50)
	}
	return v
}

// sizes of the tests' arrays: odd ones, and one of several rounds.
func counts(dt dtype.DType) []int {
	return []int{1, 2, 7, 127, 128, 129, 1000, 65537, 2*SlotBytes/dt.Size() + 333}
}

// onMemory calls f with a stream, n bytes of the team and as many of the host.
func onMemory(t testing.TB, n int, f func(r *rig) error) {
	onGPUs(t, 2, func(rank int, d *cuda.Device, team *Team) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		memory, err := team.Alloc(ctx, n)
		if err != nil {
			return err
		}
		stream, err := d.NewStream("comm")
		if err != nil {
			return err
		}
		defer stream.Close()
		host, err := d.AllocHost(n)
		if err != nil {
			return err
		}
		if err := team.agree(ctx, "test ready", nil); err != nil { // to allocate may wait for another GPU's work
			return err
		}
		return f(&rig{ctx: ctx, team: team, s: stream.(*cuda.Stream), memory: memory, host: host})
	})
}

// rig is what a test of a call works with, on one rank.
type rig struct {
	ctx          context.Context
	team         *Team
	s            *cuda.Stream
	memory, host device.Buffer
}

// give writes values to b.
func (r *rig) give(dt dtype.DType, b device.Buffer, values []float32) {
	raw := r.host.Slice(0, b.Len())
	vec.Narrow(dt, raw.Bytes(), values)
	r.s.Copy(b, raw)
}

// check compares b with the values that are wanted.
func (r *rig) check(dt dtype.DType, b device.Buffer, want []float32) error {
	raw := r.host.Slice(0, b.Len())
	r.s.Copy(raw, b)
	if err := r.s.Synchronize(r.ctx); err != nil {
		return err
	}
	got := make([]float32, len(want))
	vec.Widen(dt, got, raw.Bytes())
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%d of %s: element %d is %v, want %v", len(want), dt, i, got[i], want[i])
		}
	}
	return nil
}

// summed is the sum of both ranks' values, or the mean.
func summed(n int, avg bool) []float32 {
	sum := values(0, n)
	for i, v := range values(1, n) {
		sum[i] += v
		if avg {
			sum[i] /= 2
		}
	}
	return sum
}

func TestSumsOnGPUs(t *testing.T) {
	onMemory(t, 4*(2*SlotBytes+1000), func(r *rig) error {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			for _, n := range counts(dt) {
				for _, avg := range []bool{false, true} {
					b := r.memory.Slice(256, 256+n*dt.Size())
					r.give(dt, b, values(r.team.me, n))
					if err := r.team.AllReduce(r.s, b, dt, avg); err != nil {
						return err
					}
					if err := r.check(dt, b, summed(n, avg)); err != nil {
						return fmt.Errorf("avg %t: %w", avg, err)
					}
				}
			}
		}
		return nil
	})
}

// A part of each rank, in place and not, and then together again.
func TestScatterAndGatherOnGPUs(t *testing.T) {
	onMemory(t, 16*(2*SlotBytes+1000), func(r *rig) error {
		me := r.team.me
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			for _, n := range counts(dt) {
				n = (n + 7) / 8 * 8 // each rank's
				size := n * dt.Size()
				src, apart := r.memory.Slice(256, 256+2*size), r.memory.Slice(256+2*size, 256+3*size)
				sum := summed(2*n, false)
				for _, dst := range []device.Buffer{src.Slice(me*size, (me+1)*size), apart} {
					r.give(dt, src, values(me, 2*n))
					if err := r.team.ReduceScatter(r.s, dst, src, dt, false); err != nil {
						return err
					}
					if err := r.check(dt, dst, sum[me*n:(me+1)*n]); err != nil {
						return err
					}
					if err := r.team.AllGather(r.s, src, dst); err != nil {
						return err
					}
					if err := r.check(dt, src, sum); err != nil {
						return fmt.Errorf("gathered: %w", err)
					}
				}
			}
		}
		return nil
	})
}

// A rank whose peer makes no call waits until Abort.
func TestAbortEndsTheWaitForAPeer(t *testing.T) {
	onGPUs(t, 2, func(rank int, d *cuda.Device, team *Team) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		memory, err := team.Alloc(ctx, 1<<20)
		if err != nil || rank == 1 {
			return err
		}
		s, err := d.NewStream("comm")
		if err != nil {
			return err
		}
		defer s.Close()
		if err := team.AllReduce(s.(*cuda.Stream), memory, dtype.F32, false); err != nil {
			return err
		}
		if err := team.Abort(errors.New("the test says so"), time.Minute); err != nil {
			return err
		}
		if err := s.Synchronize(ctx); err != nil {
			return err
		}
		if err := team.AllReduce(s.(*cuda.Stream), memory, dtype.F32, false); err == nil {
			return fmt.Errorf("a call behind Abort was accepted")
		}
		return nil
	})
}

// BenchmarkCalls prints nccl-tests' bus bandwidth for n GPUs: 2(n-1)/n of the bytes by
// time for an AllReduce, (n-1)/n for its two halves.
func BenchmarkCalls(b *testing.B) {
	const n = 2
	for _, call := range []struct {
		name  string
		share float64
		make  func(t *Team, s *cuda.Stream, b device.Buffer) error
	}{
		{"AllReduce", 2 * (n - 1.) / n, func(t *Team, s *cuda.Stream, b device.Buffer) error {
			return t.AllReduce(s, b, dtype.BF16, false)
		}},
		{"ReduceScatter", (n - 1.) / n, func(t *Team, s *cuda.Stream, b device.Buffer) error {
			return t.ReduceScatter(s, t.own(b), b, dtype.BF16, false)
		}},
		{"AllGather", (n - 1.) / n, func(t *Team, s *cuda.Stream, b device.Buffer) error { return t.AllGather(s, b, t.own(b)) }},
	} {
		for _, mib := range []int{1, 4, 25, 64, 256} {
			b.Run(fmt.Sprintf("%s/%dMiB", call.name, mib), func(b *testing.B) {
				onGPUs(b, n, func(rank int, d *cuda.Device, team *Team) error {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					memory, err := team.Alloc(ctx, mib<<20)
					if err != nil {
						return err
					}
					stream, err := d.NewStream("comm")
					if err != nil {
						return err
					}
					defer stream.Close()
					s := stream.(*cuda.Stream)
					const warm, rounds = 5, 20
					var begin device.Event
					for i := range warm + rounds {
						if i == warm {
							begin = s.Record()
						}
						if err := call.make(team, s, memory); err != nil {
							return err
						}
					}
					end := s.Record()
					if err := end.Sync(ctx); err != nil {
						return err
					}
					took, err := end.Since(begin)
					if rank == 0 {
						b.ReportMetric(float64(mib<<20)*call.share*rounds/took.Seconds()/1e9, "GB/s")
						b.ReportMetric(took.Seconds()/rounds*1e6, "µs/call")
					}
					return err
				})
			})
		}
	}
}

// own is this rank's part.
func (t *Team) own(b device.Buffer) device.Buffer {
	n := b.Len() / t.size
	return b.Slice(t.me*n, (t.me+1)*n)
}
