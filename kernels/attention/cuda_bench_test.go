package attention

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/internal/gputest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// BenchmarkCUDAAttention prints TFLOP/s, of 2·B·H·T²·D operations forward and 2.5
// times that backward, beside what the same kernels reached on an H200 when their
// sizes were chosen. There 0.85 of that is the floor.
func BenchmarkCUDAAttention(b *testing.B) {
	for _, x := range []struct {
		shape
		wgmma, mma [2]float64 // forward, backward; 0: not measured
	}{
		{shape{B: 8, T: 2048, H: 14, K: 2, D: 64}, [2]float64{342, 320}, [2]float64{270, 192}},
		{shape{B: 4, T: 4096, H: 14, K: 2, D: 64}, [2]float64{388, 359}, [2]float64{289, 206}},
		{shape{B: 8, T: 2048, H: 12, K: 2, D: 128}, [2]float64{519, 362}, [2]float64{276, 226}},
		{shape{B: 4, T: 4096, H: 12, K: 2, D: 128}, [2]float64{601, 394}, [2]float64{306, 248}},
		{shape{B: 4, T: 4096, H: 28, K: 4, D: 128}, [2]float64{600, 395}, [2]float64{317, 248}},
		// Few sequences, where cuDNN's backward pass takes them whole: for Prefer.
		{shape: shape{B: 2, T: 4096, H: 12, K: 2, D: 128}},
		{shape: shape{B: 1, T: 4096, H: 28, K: 4, D: 128}},
	} {
		b.Run(fmt.Sprintf("B=%d,T=%d,%d:%d,D=%d", x.B, x.T, x.H, x.K, x.D), func(b *testing.B) {
			for _, a := range implementations(b) {
				known := x.mma
				if a.name == "wgmma" {
					known = x.wgmma
				}
				measure(b, a, x.shape, known)
			}
			env, s := gputest.Env(b)
			c, err := NewCUDA(env, "cudnn")
			if err == nil {
				defer c.Close()
				measure(b, implementation{"cudnn", c, s}, x.shape, [2]float64{})
			} else {
				b.Logf("without cuDNN: %v", err)
			}
		})
	}
}

// measure times both passes over random inputs of a step's statistics.
func measure(b *testing.B, a implementation, d shape, known [2]float64) {
	s := a.Stream
	p := newProblem(d, false, 0)
	qkv, do := gputest.Upload(b, s, p.qkv, dtype.BF16), gputest.Upload(b, s, p.do, dtype.BF16)
	o, lse := gputest.New(b, s, dtype.BF16, p.do.Shape...), gputest.New(b, s, dtype.F32, d.B, d.H, d.T)
	dqkv := gputest.New(b, s, dtype.BF16, p.qkv.Shape...)
	work := 2 * float64(d.B) * float64(d.H) * float64(d.T) * float64(d.T) * float64(d.D)
	for i, pass := range []struct {
		name string
		work float64
		run  func()
	}{
		{"forward", work, func() { a.Attention(s, o, lse, qkv, tensor.Tensor{}) }},
		{"backward", 2.5 * work, func() { a.AttentionBackward(s, dqkv, do, o, lse, qkv, tensor.Tensor{}) }},
	} {
		b.Run(a.name+"/"+pass.name, func(b *testing.B) {
			a.Attention(s, o, lse, qkv, tensor.Tensor{}) // whichever pass is chosen, its inputs are there
			rate := pass.work / took(b, s, pass.run).Seconds() / 1e12
			b.ReportMetric(rate, "TFLOP/s")
			b.ReportMetric(0, "ns/op") // the host's, which means nothing
			if known[i] == 0 {
				return
			}
			b.ReportMetric(known[i], "known-TFLOP/s")
			b.ReportMetric(rate/known[i], "of-known")
			if strings.Contains(s.Device().(*cuda.Device).Name(), "H200") && rate < 0.85*known[i] {
				b.Errorf("%s %s: %.0f TFLOP/s, below 0.85 of %.0f", a.name, pass.name, rate, known[i])
			}
		})
	}
}

// took is the device's time for one run, on average.
func took(b *testing.B, s *cuda.Stream, run func()) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 5 {
		run()
	}
	calls, from := 0, s.Record()
	for b.Loop() {
		run()
		calls++
	}
	to := s.Record()
	if err := to.Sync(ctx); err != nil {
		b.Fatal(err)
	}
	d, err := to.Since(from)
	if err != nil {
		b.Fatal(err)
	}
	return d / time.Duration(calls)
}
