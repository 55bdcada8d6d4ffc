package cudnn

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// figures is what the same plans reached when they were first proved, on an H200
// with cuDNN 9.19 (9.14 is within 4 %): TFLOP/s of 2·B·H·T²·D operations forward
// and 2.5 times as many backward, deterministic and not sliced.
var figures = []struct {
	H, K, D, B, T     int
	forward, backward float64
}{
	{14, 2, 64, 32, 512, 237, 149}, {14, 2, 64, 16, 1024, 311, 205}, {14, 2, 64, 8, 2048, 367, 252}, {14, 2, 64, 4, 4096, 408, 287},
	{12, 2, 128, 32, 512, 340, 215}, {12, 2, 128, 16, 1024, 442, 298}, {12, 2, 128, 8, 2048, 522, 370}, {12, 2, 128, 4, 4096, 573, 421},
	{28, 4, 128, 32, 512, 379, 238}, {28, 4, 128, 16, 1024, 484, 326}, {28, 4, 128, 8, 2048, 564, 400}, {28, 4, 128, 4, 4096, 610, 449},
}

// BenchmarkAttention prints TFLOP/s beside those figures. A pass is timed 15 times
// by events; the median counts. limit is the default, at which the largest shapes
// are sliced, or none.
func BenchmarkAttention(b *testing.B) {
	for _, f := range figures {
		name := fmt.Sprintf("H%d/K%d/D%d/B%d/T%d", f.H, f.K, f.D, f.B, f.T)
		for _, pass := range []struct {
			name     string
			limit    int64
			figure   float64
			backward bool
		}{{"forward", Limit, f.forward, false}, {"backward", 8 << 30, f.backward, true}, {"backward-1GiB", Limit, f.backward, true}} {
			b.Run(name+"/"+pass.name, func(b *testing.B) {
				a, _, s := onGPU(b)
				a.limit = pass.limit
				p := pose(b, s, whole(f.B, f.T, f.H, f.K, f.D), nil)
				flops := 2 * float64(f.B) * float64(f.H) * float64(f.T) * float64(f.T) * float64(f.D)
				run := func() { a.Forward(s, p.o, p.lse, p.qkv) }
				if pass.backward {
					run() // what backward reads
					run = func() { a.Backward(s, p.dqkv, p.do, p.o, p.lse, p.qkv) }
					flops *= 2.5
				}
				took := make([]time.Duration, 15)
				for b.Loop() {
					for range 4 {
						run()
					}
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					for i := range took {
						from := s.Record()
						run()
						to := s.Record()
						if err := to.Sync(ctx); err != nil {
							b.Fatal(err)
						}
						var err error
						if took[i], err = to.Since(from); err != nil {
							b.Fatal(err)
						}
					}
					cancel()
				}
				slices.Sort(took)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(took[len(took)/2].Seconds()*1e6, "µs/pass")
				b.ReportMetric(flops/took[len(took)/2].Seconds()/1e12, "TFLOP/s")
				b.ReportMetric(pass.figure, "figure-TFLOP/s")
				b.ReportMetric(float64(a.Workspace(f.B, f.T, f.H, f.K, f.D)>>20), "scratch-MiB")
			})
		}
	}
}

// BenchmarkHost is what a call costs the host.
func BenchmarkHost(b *testing.B) {
	for _, backward := range []bool{false, true} {
		b.Run(fmt.Sprintf("backward=%v", backward), func(b *testing.B) {
			a, _, s := onGPU(b)
			p := pose(b, s, whole(1, 128, 14, 2, 64), nil)
			a.Forward(s, p.o, p.lse, p.qkv)
			a.Backward(s, p.dqkv, p.do, p.o, p.lse, p.qkv)
			b.ReportAllocs()
			for b.Loop() {
				if backward {
					a.Backward(s, p.dqkv, p.do, p.o, p.lse, p.qkv)
				} else {
					a.Forward(s, p.o, p.lse, p.qkv)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Synchronize(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}
