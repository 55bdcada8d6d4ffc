package cpu_test

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// spans adds up the time of each operation.
type spans struct {
	mu  sync.Mutex
	sum map[string]time.Duration
}

func (s *spans) Span(_, work string, start, end time.Time) {
	s.mu.Lock()
	s.sum[work] += end.Sub(start)
	s.mu.Unlock()
}

// BenchmarkStep is the operations of one training step of a small Llama (4
// layers, hidden 128, 8 sequences of 256, 256 tokens): GFLOP/s of its products,
// and with -v where the time goes. What is not a product should stay below them.
func BenchmarkStep(b *testing.B) {
	for _, backend := range gemm.Names() {
		b.Run(backend, func(b *testing.B) { benchmarkStep(b, backend) })
	}
}

func benchmarkStep(b *testing.B, backend string) {
	const layers, B, T, C, H, K, F, V = 4, 8, 256, 128, 4, 2, 352, 256
	const N, D, kv = B * T, C / H, K * C / H
	ops, err := cpu.New(1, cpu.Options{GEMM: backend})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ops.Close)
	times := &spans{sum: map[string]time.Duration{}}
	s := device.NewCPUStream("step", times)
	b.Cleanup(func() { _ = s.Close() })

	r := kerntest.Rand(1)
	zero := func(shape ...int) tensor.Tensor { return kerntest.Normal(r, 0, shape...) }
	w := func(shape ...int) tensor.Tensor { return kerntest.Normal(r, 0.05, shape...) }
	table, wq, wk, wo := w(V, C), w(C, C), w(kv, C), w(C, C)
	wg, wd, wn := w(F, C), w(C, F), w(C)
	x, h, q, k, v, o, lse := w(N, C), w(N, C), w(N, C), w(N, kv), w(N, kv), w(N, C), w(B, H, T)
	gate, up, y, rstd := w(N, F), w(N, F), w(N, F), w(N)
	dx, dh, dq, dk, dv := w(N, C), w(N, C), w(N, C), w(N, kv), w(N, kv)
	dgate, dup, dy := w(N, F), w(N, F), w(N, F)
	logits, losses, total := w(N, V), w(N), kerntest.Scalar(0)
	cos, sin := w(T, D/2), w(T, D/2)
	list := make([]int32, N)
	for i := range list {
		list[i] = int32(r.IntN(V))
	}
	ids, none := kerntest.IDs(list...), tensor.Tensor{}
	params := layers*(2*C*C+2*kv*C+3*F*C) + V*C
	pw, pm, pv, pg := w(params), zero(params), zero(params), w(params)
	qs, ks := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(B, T, H, D) }, func(t tensor.Tensor) tensor.Tensor { return t.Reshape(B, T, K, D) }
	flops := 6 * N * params

	step := 0
	for b.Loop() {
		step++
		ops.Embed(s, x, table, ids, false)
		for range layers {
			ops.RMSNorm(s, h, rstd, x, wn, 1e-5)
			ops.Linear(s, q, h, wq, none)
			ops.Linear(s, k, h, wk, none)
			ops.Linear(s, v, h, wk, none)
			ops.RoPE(s, qs(q), cos, sin, 0, false)
			ops.RoPE(s, ks(k), cos, sin, 0, false)
			ops.Attention(s, qs(o), lse, qs(q), ks(k), ks(v))
			ops.Linear(s, h, o, wo, none)
			ops.Add(s, h, h, x)
			ops.RMSNorm(s, h, rstd, x, wn, 1e-5)
			ops.Linear(s, gate, h, wg, none)
			ops.Linear(s, up, h, wg, none)
			ops.SwiGLU(s, y, gate, up)
			ops.Linear(s, h, y, wd, none)
			ops.Add(s, h, h, x)
		}
		ops.Linear(s, logits, h, table, none)
		ops.CrossEntropy(s, losses, logits, ids, 1.0/N, true)
		ops.Sum(s, total, losses, false)
		ops.LinearBackwardX(s, dx, logits, table, false)
		ops.LinearBackwardW(s, table, logits, h, false)
		for range layers {
			ops.LinearBackwardX(s, dy, dx, wd, false)
			ops.LinearBackwardW(s, wd, dx, y, false)
			ops.SwiGLUBackward(s, dgate, dup, dy, gate, up)
			ops.LinearBackwardX(s, dh, dgate, wg, false)
			ops.LinearBackwardX(s, dh, dup, wg, true)
			ops.LinearBackwardW(s, wg, dgate, h, false)
			ops.LinearBackwardW(s, wg, dup, h, true)
			ops.RMSNormBackward(s, dx, wn, dh, x, wn, rstd, true, false)
			ops.LinearBackwardX(s, dq, dx, wo, false)
			ops.LinearBackwardW(s, wo, dx, o, false)
			ops.AttentionBackward(s, qs(dh), ks(dk), ks(dv), qs(dq), qs(o), lse, qs(q), ks(k), ks(v))
			ops.RoPE(s, qs(dh), cos, sin, 0, true)
			ops.RoPE(s, ks(dk), cos, sin, 0, true)
			ops.LinearBackwardX(s, dq, dh, wq, false)
			ops.LinearBackwardX(s, dq, dk, wk, true)
			ops.LinearBackwardX(s, dq, dv, wk, true)
			ops.LinearBackwardW(s, wq, dh, h, false)
			ops.LinearBackwardW(s, wk, dk, h, false)
			ops.LinearBackwardW(s, wk, dv, h, true)
			ops.RMSNormBackward(s, dx, wn, dq, x, wn, rstd, true, false)
		}
		ops.EmbedBackward(s, table, dx, ids, true)
		ops.SumSquares(s, total, pg, false)
		ops.AdamW(s, pw, pm, pv, pg, adamw.Hyper{LR: 1e-6, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: step})
		kerntest.Wait(b, s)
	}
	b.ReportMetric(float64(flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	b.ReportMetric(float64(N)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
	names := []string{}
	for name := range times.sum {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return times.sum[names[i]] > times.sum[names[j]] })
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "\n%8.3f ms %s", float64(times.sum[name].Microseconds())/1e3/float64(step), name)
	}
	b.Log(text.String())
}
