package hf

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/gpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/internal/modeltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

var _ models.Ops = (*gpu.Ops)(nil)

// gpuSink keeps gradients in f32 on the device.
type gpuSink struct {
	t     *testing.T
	env   models.Env
	grads map[*param.Param]tensor.Tensor
}

func (s *gpuSink) Get(p *param.Param) (tensor.Tensor, bool) {
	g, again := s.grads[p]
	if !again {
		var err error
		if g, err = tensor.Alloc(s.env.Device, dtype.F32, p.Shape...); err != nil {
			s.t.Fatal(err)
		}
		s.grads[p] = g
	}
	return g, again
}

func (s *gpuSink) Ready(*param.Param) {}

// host copies t, f32 or f64, to the host.
func host(t *testing.T, env models.Env, x tensor.Tensor) tensor.Tensor {
	t.Helper()
	buf, err := env.Device.AllocHost(x.Buf.Len())
	if err != nil {
		t.Fatal(err)
	}
	env.Stream.Copy(buf, x.Buf)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := env.Stream.Synchronize(ctx); err != nil {
		t.Fatal(err)
	}
	return tensor.New(buf, x.DType, x.Shape...)
}

// onGPU copies values, of 4 bytes each, to the device as dt.
func onGPU(t *testing.T, env models.Env, raw []byte, dt dtype.DType, shape ...int) tensor.Tensor {
	t.Helper()
	x, err := tensor.Alloc(env.Device, dt, shape...)
	if err != nil {
		t.Fatal(err)
	}
	buf, err := env.Device.AllocHost(len(raw))
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes(), raw)
	env.Stream.Copy(x.Buf, buf)
	return x
}

// The figures of PyTorch, but for the rounding of weights and activations to bf16.
func TestGPUMatchesPyTorch(t *testing.T) {
	if n, err := cuda.Count(); err != nil || n == 0 {
		testenv.Skip(t, "gpu", fmt.Sprintf("no GPU is visible (%v)", err))
	}
	for _, name := range []string{"stories260K", "tiny-random-gpt2", "tiny-qwen2-synthetic"} {
		t.Run(name, func(t *testing.T) {
			path := testenv.Data(t, name+"/golden_torch.json")
			var g golden
			decode(t, path, &g)
			matchOnGPU(t, filepath.Dir(path), g)
		})
	}
}

func matchOnGPU(t *testing.T, dir string, g golden) {
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	defer dev.Bind()()
	ops, err := gpu.New(dev, gpu.Options{Attention: "native"})
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	s, err := dev.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := g.batch()
	env := models.Env{Device: dev, Stream: s, Ops: ops, B: b.B, T: b.T}
	f, err := Open(dir, dtype.BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.NewModel(env)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := param.NewReplica(dev, m.Params())
	if err != nil {
		t.Fatal(err)
	}
	err = f.Load(m.Params(), func(p *param.Param, values []float32) error {
		ops.Copy(s, weights.Weight(p), onGPU(t, env, device.Of(values).Bytes(), dtype.F32, p.Shape...))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n := count(b)
	batch := models.Batch{B: b.B, T: b.T,
		Tokens: onGPU(t, env, b.Tokens.Buf.Bytes(), dtype.I32, b.B*b.T), Targets: onGPU(t, env, b.Targets.Buf.Bytes(), dtype.I32, b.B*b.T)}
	loss, err := tensor.Alloc(dev, dtype.F64, 1)
	if err != nil {
		t.Fatal(err)
	}
	sink := &gpuSink{t, env, map[*param.Param]tensor.Tensor{}}
	m.Forward(weights, batch, loss, true)
	m.Backward(weights, sink, 1/float32(n))
	want := g.Float64
	modeltest.Near(t, "loss", host(t, env, loss).F64()[0]/float64(n), want.Loss, 1e-2, 0.5)

	total := 0.0
	for _, p := range m.Params() {
		grad := host(t, env, sink.grads[p]).F32()
		p.EachPart(func(part param.Part, from, to int) {
			got := grad[from:to]
			norm := want.GradNorms[part.Name]
			// Gradients that are nothing but rounding, as those of keys' biases, are
			// compared on the scale of all.
			floor := 0.02 * want.GradNorm
			modeltest.Near(t, "norm of the gradient of "+part.Name, modeltest.Norm(got), norm, 5e-2, floor)
			total += modeltest.Dot(got, got)
			scale := max(norm, floor) / math.Sqrt(float64(len(got)))
			for i, x := range first(f.family, p, part, got, len(want.GradFirst[part.Name])) {
				modeltest.Near(t, fmt.Sprintf("gradient of %s at %d", part.Name, i), float64(x), want.GradFirst[part.Name][i], 0.15, 2*scale)
			}
		})
	}
	modeltest.Near(t, "norm of all gradients", math.Sqrt(total), want.GradNorm, 2e-2, 0)

	// The cache of a generator sees what the forward pass sees.
	if err := m.Reset(len(g.IDs[0])); err != nil {
		t.Fatal(err)
	}
	logits, err := tensor.Alloc(dev, dtype.F32, m.Vocab())
	if err != nil {
		t.Fatal(err)
	}
	last := g.IDs[0] // whose end the golden logits are of
	for _, piece := range [][]int32{last[:len(last)/2], last[len(last)/2 : len(last)-1], last[len(last)-1:]} {
		if err := m.Next(weights, piece, logits); err != nil {
			t.Fatal(err)
		}
		host(t, env, logits)
	}
	scale := want.LogitsNorm / math.Sqrt(float64(len(g.IDs)*len(last)*m.Vocab()))
	for i, x := range host(t, env, logits).F32()[:len(want.Logits)] {
		modeltest.Near(t, fmt.Sprintf("logit %d", i), float64(x), want.Logits[i], 5e-2, scale)
	}
}
