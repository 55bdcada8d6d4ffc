package shm

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// board is an Exchange inside one process.
type board struct {
	mu     sync.Mutex
	values map[string][]byte
	posted map[string]chan struct{}
}

func newBoard() *board {
	return &board{values: map[string][]byte{}, posted: map[string]chan struct{}{}}
}

func (b *board) ready(key string) chan struct{} {
	if b.posted[key] == nil {
		b.posted[key] = make(chan struct{})
	}
	return b.posted[key]
}

func (b *board) Set(_ context.Context, key string, value []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = value
	close(b.ready(key))
	return nil
}

func (b *board) Wait(ctx context.Context, key string) ([]byte, error) {
	b.mu.Lock()
	c := b.ready(key)
	b.mu.Unlock()
	select {
	case <-c:
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.values[key], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// groupRanks makes the ranks of the group differ from those of the team.
func groupRanks(size int) []int {
	var ranks []int
	for r := range size {
		ranks = append(ranks, 10+r)
	}
	return ranks
}

// teamOf runs f on every rank of a team whose ranks are goroutines, each with a
// mapping of its own.
func teamOf(t testing.TB, size int, f func(t *Team) error) {
	t.Helper()
	errs := everyRank(t, size, func(team *Team) error {
		if err := f(team); err != nil {
			return err
		}
		return team.Barrier(call(transport.Barrier, 0, dtype.U8, 1<<40))
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d of %d: %v", r, size, err)
		}
	}
}

// everyRank is teamOf for teams that fail.
func everyRank(t testing.TB, size int, f func(t *Team) error) []error {
	t.Helper()
	exchange := newBoard()
	errs := make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() {
			team, err := Join(t.Context(), Options{Rank: r, Size: size, Ranks: groupRanks(size), Key: "team", Exchange: exchange, Timeout: 30 * time.Second})
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = f(team)
			if err := team.Close(); err != nil {
				errs[r] = fmt.Errorf("close: %w", err)
			}
		})
	}
	wg.Wait()
	return errs
}

// awaitEntry yields until another rank has entered the call that this one makes next.
func (t *Team) awaitEntry(rank int) error {
	next := t.ops.Load() + 1
	for end := time.Now().Add(30 * time.Second); !reached(t.entered(rank, next), next); runtime.Gosched() {
		if time.Now().After(end) {
			return fmt.Errorf("rank %d does not enter call %d", rank, next)
		}
	}
	return nil
}

func call(kind transport.Kind, op transport.Op, dt dtype.DType, seq int) transport.Call {
	return transport.Call{
		Header:   transport.Header{Group: 7, Seq: uint64(seq), Kind: kind, Op: op, DType: dt, Root: -1},
		Deadline: time.Now().Add(30 * time.Second),
	}
}

// value is what rank contributes at element i: small integers, for which the
// result of every operation over 7 ranks is exact in every type.
func value(op transport.Op, rank, i int) int {
	if op == transport.Prod {
		if (i+rank)%3 == 0 {
			return 2
		}
		return 1
	}
	return i%7 + rank + 1
}

// result is the closed form of the reduction of value over ranks 0 to n-1; Avg of
// floats may end in .5.
func result(op transport.Op, n, i int) float64 {
	switch op {
	case transport.Sum:
		return float64(n*(i%7) + n*(n+1)/2)
	case transport.Avg:
		return float64(n*(i%7)+n*(n+1)/2) / float64(n)
	case transport.Min:
		return float64(i%7 + 1)
	case transport.Max:
		return float64(i%7 + n)
	}
	p := 1.0
	for r := range n {
		p *= float64(value(op, r, i))
	}
	return p
}

func put(dt dtype.DType, b []byte, i int, v float64) {
	p := unsafe.Pointer(&b[i*dt.Size()])
	switch dt {
	case dtype.F32:
		*(*float32)(p) = float32(v)
	case dtype.F64:
		*(*float64)(p) = v
	case dtype.F16:
		*(*uint16)(p) = dtype.F16From(float32(v))
	case dtype.BF16:
		*(*uint16)(p) = dtype.BF16From(float32(v))
	case dtype.I32:
		*(*int32)(p) = int32(v)
	case dtype.I64:
		*(*int64)(p) = int64(v)
	case dtype.U8:
		b[i] = uint8(v)
	}
}

func get(dt dtype.DType, b []byte, i int) float64 {
	p := unsafe.Pointer(&b[i*dt.Size()])
	switch dt {
	case dtype.F32:
		return float64(*(*float32)(p))
	case dtype.F64:
		return *(*float64)(p)
	case dtype.F16:
		return float64(dtype.F16To(*(*uint16)(p)))
	case dtype.BF16:
		return float64(dtype.BF16To(*(*uint16)(p)))
	case dtype.I32:
		return float64(*(*int32)(p))
	case dtype.I64:
		return float64(*(*int64)(p))
	}
	return float64(b[i])
}

// period is one of value and result, for every operation.
const period = 21

// fill stores v(i), which has that period, in element i of b. Integers truncate.
func fill(dt dtype.DType, b []byte, v func(i int) float64) {
	size := dt.Size()
	for i := range min(period, len(b)/size) {
		put(dt, b, i, v(i))
	}
	for n := period * size; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// expect compares all elements of b with want, as fill stores it.
func expect(what string, dt dtype.DType, b []byte, want func(i int) float64) error {
	w := make([]byte, len(b))
	fill(dt, w, want)
	if bytes.Equal(b, w) {
		return nil
	}
	for i := range len(b) / dt.Size() {
		if g, w := get(dt, b, i), get(dt, w, i); g != w {
			return fmt.Errorf("%s: element %d is %v, want %v", what, i, g, w)
		}
	}
	return fmt.Errorf("%s: equal values have different bits", what)
}

// odd returns n bytes at an odd address, with a guard behind that check looks at.
func odd(n int) (b []byte, check func() error) {
	raw := make([]byte, n+65)
	guard := raw[1+n:]
	for i := range guard {
		guard[i] = 0xA5
	}
	return raw[1 : 1+n : 1+n], func() error {
		for i, x := range guard {
			if x != 0xA5 {
				return fmt.Errorf("the byte %d behind the buffer changed", i)
			}
		}
		return nil
	}
}

func fillValues(dt dtype.DType, op transport.Op, b []byte, rank int) {
	fill(dt, b, func(i int) float64 { return float64(value(op, rank, i)) })
}
