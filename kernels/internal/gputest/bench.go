package gputest

import (
	"context"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
)

// Sets is how many sets of tensors of so many bytes a benchmark takes in turn, so
// that none is still in the cache when it comes again.
func Sets(bytes int) int { return max(2, 512<<20/max(bytes, 1)) }

// Bandwidth times op, which moves bytes of device memory, and reports GB/s, and its
// ratio to a copy within the device (reads and writes counted) in the same run.
// op is called with 0, 1, 2, ...
func Bandwidth(b *testing.B, s *cuda.Stream, bytes int, op func(i int)) {
	b.Helper()
	copied := copyRate(b, s)
	for i := range 10 {
		op(i)
	}
	calls := 0
	took := elapsed(b, s, func() {
		for b.Loop() {
			op(calls)
			calls++
		}
	})
	rate := float64(bytes) * float64(calls) / took.Seconds()
	b.ReportMetric(float64(took.Nanoseconds())/float64(calls), "ns/op")
	b.ReportMetric(rate/1e9, "GB/s")
	b.ReportMetric(copied/1e9, "copy-GB/s")
	b.ReportMetric(rate/copied, "of-copy")
}

// copyRate is bytes a second read and written by a copy of 1 GiB.
func copyRate(b *testing.B, s *cuda.Stream) float64 {
	b.Helper()
	const n, times = 1 << 30, 10
	d := s.Device()
	from, err := d.Alloc(n)
	if err != nil {
		b.Fatal(err)
	}
	to, err := d.Alloc(n)
	if err != nil {
		b.Fatal(err)
	}
	s.Copy(to, from)
	took := elapsed(b, s, func() {
		for range times {
			s.Copy(to, from)
		}
	})
	for _, x := range []func() error{func() error { return d.Free(from) }, func() error { return d.Free(to) }} {
		if err := x(); err != nil {
			b.Fatal(err)
		}
	}
	return 2 * n * times / took.Seconds()
}

// elapsed is the device's time for what f enqueues.
func elapsed(b *testing.B, s *cuda.Stream, f func()) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := s.Synchronize(ctx); err != nil {
		b.Fatal(err)
	}
	from := s.Record()
	f()
	to := s.Record()
	if err := to.Sync(ctx); err != nil {
		b.Fatal(err)
	}
	took, err := to.Since(from)
	if err != nil {
		b.Fatal(err)
	}
	return took
}
