package cpu_test

import (
	"testing"

	"github.com/gorun-dev/gorun/kernels/adamw"
	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// BenchmarkOps is each operation that reads and writes memory, in GB/s of its
// arguments, on tensors that leave the caches. The first line is the limit:
// what the machine copies in the same run. Products stand in gemm's benchmark,
// attention in GFLOP/s here.
func BenchmarkOps(b *testing.B) {
	const B, T, H, K, D = 4, 512, 8, 2, 64
	const N, C, F, V = B * T, H * D, 1376, 4096
	ops, err := cpu.New(1, cpu.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ops.Close)
	s := kerntest.Stream(b)
	r := kerntest.Rand(1)
	rand := func(shape ...int) tensor.Tensor { return kerntest.Normal(r, 1, shape...) }
	x, y, z, w, bias, mean, rstd := rand(N, C), rand(N, C), rand(N, C), rand(C), rand(C), rand(N), rand(N)
	gate, out, dgate, dup := rand(N, F), rand(N, F), rand(N, F), rand(N, F)
	gateUp := rand(N, 2*F)
	logits, losses, table, sum := rand(N, V), rand(N), rand(V, C), kerntest.Scalar(0)
	qkv, dqkv, lse := rand(B, T, H+2*K, D), rand(B, T, H+2*K, D), rand(B, H, T)
	cos, sin := rand(T, D/2), rand(T, D/2)
	raw, err := device.NewCPU().Alloc(2 * N * F)
	if err != nil {
		b.Fatal(err)
	}
	half := tensor.New(raw, dtype.BF16, N, F)
	list := make([]int32, N)
	for i := range list {
		list[i] = int32(r.IntN(V))
	}
	ids := kerntest.IDs(list...)
	heads := func(t tensor.Tensor) tensor.Tensor { return t.Reshape(B, T, H, D) }
	const attention = 2 * 2 * B * H * T * T / 2 * D // products of the visible half

	for _, op := range []struct {
		name  string
		bytes int
		flops int
		run   func()
	}{
		{"limit: copy", 8 * N * F, 0, func() { ops.Copy(s, out, gate) }},
		{"Copy to bf16", 6 * N * F, 0, func() { ops.Copy(s, half, gate) }},
		{"Zero", 4 * N * F, 0, func() { ops.Zero(s, out) }},
		{"SwiGLU", 12 * N * F, 0, func() { ops.SwiGLU(s, out, gateUp) }},
		{"SwiGLUBackward", 20 * N * F, 0, func() { ops.SwiGLUBackward(s, gateUp, out, gateUp) }},
		{"GELU", 8 * N * F, 0, func() { ops.GELU(s, out, gate) }},
		{"GELUBackward", 12 * N * F, 0, func() { ops.GELUBackward(s, dgate, out, gate) }},
		{"RMSNorm", 8 * N * C, 0, func() { ops.RMSNorm(s, y, rstd, x, w, 1e-5) }},
		{"RMSNormBackward", 12 * N * C, 0, func() { ops.RMSNormBackward(s, z, bias, y, x, w, rstd, false, false) }},
		{"LayerNorm", 8 * N * C, 0, func() { ops.LayerNorm(s, y, mean, rstd, x, w, bias, 1e-5) }},
		{"LayerNormBackward", 12 * N * C, 0, func() { ops.LayerNormBackward(s, z, w, bias, y, x, w, mean, rstd, false, false) }},
		{"BiasBackward", 4 * N * C, 0, func() { ops.BiasBackward(s, bias, x, false) }},
		{"RoPE", 8 * N * C, 0, func() { ops.RoPE(s, qkv, cos, sin, H, 0, false) }},
		{"Embed", 8 * N * C, 0, func() { ops.Embed(s, y, table, ids) }},
		{"EmbedBackward", 12 * N * C, 0, func() { ops.EmbedBackward(s, table, y, ids, true) }},
		{"CrossEntropy", 8 * N * V, 0, func() { ops.CrossEntropy(s, losses, logits, ids, 1, true) }},
		{"Sum", 4 * N * F, 0, func() { ops.Sum(s, sum, gate, false) }},
		{"SumSquares", 4 * N * F, 0, func() { ops.SumSquares(s, sum, gate, false) }},
		{"AdamW", 28 * N * F, 0, func() {
			ops.AdamW(s, []adamw.Slot{{W: out, M: dgate, V: dup, G: gate}}, adamw.Hyper{LR: 1e-9, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Step: 1})
		}},
		{"Attention", 0, attention, func() { ops.Attention(s, heads(y), lse, qkv, tensor.Tensor{}) }},
		{"AttentionBackward", 0, attention * 5 / 2, func() {
			ops.AttentionBackward(s, dqkv, heads(x), heads(y), lse, qkv, tensor.Tensor{})
		}},
	} {
		b.Run(op.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				op.run()
				kerntest.Wait(b, s)
			}
			per := b.Elapsed().Seconds() / float64(b.N) * 1e9
			if op.flops > 0 {
				b.ReportMetric(float64(op.flops)/per, "GFLOP/s")
			} else {
				b.ReportMetric(float64(op.bytes)/per, "GB/s")
			}
		})
	}
}
