package gputest

import (
	"context"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Sets is how many sets of tensors of so many bytes a benchmark takes in turn, so
// that none is still in the cache when it comes again.
func Sets(bytes int) int { return max(2, 512<<20/max(bytes, 1)) }

// Noise is a tensor of normally distributed numbers on the device, the same million
// over and over, for benchmarks: zeros may run faster than real data.
func Noise(b testing.TB, s *cuda.Stream, dev float64, dt dtype.DType, shape ...int) tensor.Tensor {
	b.Helper()
	const most = 1 << 20
	x := New(b, s, dt, shape...)
	n := x.Numel()
	part := Upload(b, s, kerntest.Normal(kerntest.Rand(uint64(n)), dev, min(n, most)), dt)
	flat := x.Reshape(n)
	for at := 0; at < n; at += most {
		end := min(at+most, n)
		s.Copy(flat.Rows(at, end).Buf, part.Rows(0, end-at).Buf)
	}
	kerntest.Wait(b, s)
	return x
}

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
	const n, times = 1 << 30, 10 // bytes
	from, to := Noise(b, s, 1, dtype.F32, n/4).Buf, New(b, s, dtype.F32, n/4).Buf
	s.Copy(to, from)
	took := elapsed(b, s, func() {
		for range times {
			s.Copy(to, from)
		}
	})
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
