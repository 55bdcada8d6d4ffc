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
	table, wqkv, wo := w(V, C), w(C+2*kv, C), w(C, C)
	wgu, wd, wn := w(2*F, C), w(C, F), w(C)
	x, h, qkv, o, lse := w(N, C), w(N, C), w(B, T, H+2*K, D), w(N, C), w(B, H, T)
	gateUp, y, rstd := w(N, 2*F), w(N, F), w(N)
	dx, dh, do, dqkv, dy := w(N, C), w(N, C), w(N, C), w(B, T, H+2*K, D), w(N, F)
	logits, losses, total := w(N, V), w(N), kerntest.Scalar(0)
	cos, sin := w(T, D/2), w(T, D/2)
	list := make([]int32, N)
	for i := range list {
		list[i] = int32(r.IntN(V))
	}
	ids, none := kerntest.IDs(list...), tensor.Tensor{}
	params := layers*(2*C*C+2*kv*C+3*F*C) + V*C
	slots := []adamw.Slot{{W: w(params), M: zero(params), V: zero(params), G: w(params)}}
	heads := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(B, T, H, D) }
	rows := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(N, t.Numel()/N) }
	flops := 6 * N * params

	step := 0
	for b.Loop() {
		step++
		ops.Embed(s, x, table, ids)
		for range layers {
			ops.RMSNorm(s, h, rstd, x, wn, 1e-5)
			ops.Linear(s, rows(qkv), h, wqkv, none, none)
			ops.RoPE(s, qkv, cos, sin, H+K, 0, false)
			ops.Attention(s, heads(o), lse, qkv, none)
			ops.Linear(s, x, o, wo, none, x)
			ops.RMSNorm(s, h, rstd, x, wn, 1e-5)
			ops.Linear(s, gateUp, h, wgu, none, none)
			ops.SwiGLU(s, y, gateUp)
			ops.Linear(s, x, y, wd, none, x)
		}
		ops.Linear(s, logits, x, table, none, none)
		ops.CrossEntropy(s, losses, logits, ids, 1.0/N, true)
		ops.Sum(s, total, losses, false)
		ops.LinearBackwardX(s, dx, logits, table, false)
		ops.LinearBackwardW(s, table, logits, h, false)
		for range layers {
			ops.LinearBackwardX(s, dy, dx, wd, false)
			ops.LinearBackwardW(s, wd, dx, y, false)
			ops.SwiGLUBackward(s, gateUp, dy, gateUp)
			ops.LinearBackwardX(s, dh, gateUp, wgu, false)
			ops.LinearBackwardW(s, wgu, gateUp, h, false)
			ops.RMSNormBackward(s, dx, wn, dh, x, wn, rstd, true, false)
			ops.LinearBackwardX(s, do, dx, wo, false)
			ops.LinearBackwardW(s, wo, dx, o, false)
			ops.AttentionBackward(s, dqkv, heads(do), heads(o), lse, qkv, none)
			ops.RoPE(s, dqkv, cos, sin, H+K, 0, true)
			ops.LinearBackwardX(s, dh, rows(dqkv), wqkv, false)
			ops.LinearBackwardW(s, wqkv, rows(dqkv), h, false)
			ops.RMSNormBackward(s, dx, wn, dh, x, wn, rstd, true, false)
		}
		ops.EmbedBackward(s, table, dx, ids, true)
		ops.SumSquares(s, total, slots[0].G, false)
		ops.AdamW(s, slots, adamw.Hyper{LR: 1e-6, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: step})
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
