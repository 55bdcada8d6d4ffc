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
			all := implementations(b)
			if c, err := NewCUDA(all[0].native.env, "cudnn"); err == nil {
				defer c.Close()
				all = append(all, implementation{"cudnn", c, all[0].Stream})
			} else {
				b.Logf("without cuDNN: %v", err)
			}
			f := newField(b, all[0].Stream, x.shape)
			for _, a := range all {
				f.measure(b, a, map[string][2]float64{"wgmma": x.wgmma, "mma": x.mma}[a.name])
			}
		})
	}
}

// field is the tensors of both passes on the device.
type field struct {
	shape
	qkv, o, lse, do, dqkv tensor.Tensor
}

// newField has copies of one random sequence.
func newField(b *testing.B, s *cuda.Stream, d shape) field {
	one := d
	one.B = 1
	p := newProblem(one, false, 0)
	many := func(x tensor.Tensor) tensor.Tensor {
		from, to := gputest.Upload(b, s, x, dtype.BF16), gputest.New(b, s, dtype.BF16, append([]int{d.B}, x.Shape[1:]...)...)
		for i := range d.B {
			s.Copy(to.Rows(i, i+1).Buf, from.Buf)
		}
		return to
	}
	return field{d, many(p.qkv), many(p.do), gputest.New(b, s, dtype.F32, d.B, d.H, d.T), many(p.do), many(p.qkv)}
}

// measure times both passes and reports the rates, beside those known of forward
// and backward unless they are 0.
func (f field) measure(b *testing.B, a implementation, known [2]float64) {
	s := a.Stream
	work := 2 * float64(f.B) * float64(f.H) * float64(f.T) * float64(f.T) * float64(f.D)
	forward := func() { a.Attention(s, f.o, f.lse, f.qkv, tensor.Tensor{}) }
	backward := func() { a.AttentionBackward(s, f.dqkv, f.do, f.o, f.lse, f.qkv, tensor.Tensor{}) }
	for i, pass := range []struct {
		name string
		work float64
		run  func()
	}{{"forward", work, forward}, {"backward", 2.5 * work, backward}} {
		b.Run(a.name+"/"+pass.name, func(b *testing.B) {
			forward() // a backward pass may be measured alone
			rate := pass.work / took(b, s, pass.run).Seconds() / 1e12
			b.ReportMetric(rate, "TFLOP/s")
			b.ReportMetric(0, "ns/op") // the host's, which means nothing
			if known[i] == 0 {
				return
			}
			b.ReportMetric(known[i], "known-TFLOP/s")
			b.ReportMetric(rate/known[i], "of-known")
			if name := s.Device().(*cuda.Device).Name(); strings.Contains(name, "H200") && rate < 0.85*known[i] {
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
