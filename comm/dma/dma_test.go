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
			team, err := Join(ctx, d, rank, n, b.exchange(rank))
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

func TestSumsOnGPUs(t *testing.T) {
	const n, room = 2, 4 * (2*SlotBytes + 1000)
	onGPUs(t, n, func(rank int, d *cuda.Device, team *Team) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		memory, err := team.Alloc(ctx, room)
		if err != nil {
			return err
		}
		stream, err := d.NewStream("comm")
		if err != nil {
			return err
		}
		defer stream.Close()
		s := stream.(*cuda.Stream)
		host, err := d.AllocHost(room)
		if err != nil {
			return err
		}
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
			for _, count := range []int{1, 2, 7, 127, 128, 129, 1000, 65537, 2*SlotBytes/dt.Size() + 333} {
				for _, avg := range []bool{false, true} {
					size := count * dt.Size()
					raw := host.Slice(0, size)
					vec.Narrow(dt, raw.Bytes(), values(rank, count))
					b := memory.Slice(256, 256+size)
					s.Copy(b, raw)
					if err := team.AllReduce(s, b, dt, avg); err != nil {
						return err
					}
					s.Copy(raw, b)
					if err := s.Synchronize(ctx); err != nil {
						return err
					}
					got, want := make([]float32, count), values(0, count)
					vec.Widen(dt, got, raw.Bytes())
					for i, v := range values(1, count) {
						want[i] += v
						if avg {
							want[i] /= n
						}
						if got[i] != want[i] {
							return fmt.Errorf("%d of %s, avg %t: element %d is %v, want %v", count, dt, avg, i, got[i], want[i])
						}
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

// BenchmarkAllReduce prints nccl-tests' bus bandwidth, 2(n-1)/n of the bytes by time.
func BenchmarkAllReduce(b *testing.B) {
	for _, mib := range []int{1, 4, 25, 64, 256} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			onGPUs(b, 2, func(rank int, d *cuda.Device, team *Team) error {
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
					if err := team.AllReduce(s, memory, dtype.BF16, false); err != nil {
						return err
					}
				}
				end := s.Record()
				if err := end.Sync(ctx); err != nil {
					return err
				}
				took, err := end.Since(begin)
				if rank == 0 {
					b.ReportMetric(float64(mib<<20)*rounds/took.Seconds()/1e9, "GB/s")
					b.ReportMetric(took.Seconds()/rounds*1e6, "µs/call")
				}
				return err
			})
		})
	}
}
