// Package modeltest is what the tests of every model family share: a rig that
// runs a model on the CPU, a sink and weights that record the protocol, and the
// checks that hold for every model.
package modeltest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Build makes the model under test.
type Build func(models.Env) (models.Model, error)

// Env is a CPU environment that ends with the test.
func Env(t testing.TB, b, tt int) models.Env {
	t.Helper()
	ops, err := cpu.New(1, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dev := device.NewCPU()
	stream, err := dev.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stream.Close(); err != nil {
			t.Errorf("stream: %v", err)
		}
		ops.Close()
	})
	return models.Env{Device: dev, Stream: stream, Ops: ops, B: b, T: tt}
}

// Rig is a model with weights, a sink for its gradients, and a loss.
type Rig struct {
	Env     models.Env
	Model   models.Model
	Weights *Weights
	Sink    *Sink

	// Loss is the sum of the losses that the last Gradients computed.
	Loss float64

	t    testing.TB
	loss tensor.Tensor
}

// New builds a model for micro-batches of b x tt tokens, with shaken weights.
func New(t testing.TB, b, tt int, build Build) *Rig {
	t.Helper()
	env := Env(t, b, tt)
	m, err := build(env)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := param.NewReplica(env.Device, m.Params())
	if err != nil {
		t.Fatal(err)
	}
	loss, err := tensor.Alloc(env.Device, dtype.F64, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := &Rig{Env: env, Model: m, t: t, loss: loss}
	log := &Log{}
	r.Weights = &Weights{Replica: replica, log: log, t: t}
	r.Sink = newSink(t, m.Params(), log)
	for _, p := range m.Params() {
		Shake(m, p, 1, replica.Weight(p).F32())
	}
	return r
}

// Shake writes p's initial value plus normal noise of deviation 0.1, so that no
// bias is zero and no norm is one.
func Shake(m models.Model, p *param.Param, seed uint64, out []float32) {
	m.Init(p, seed, out)
	p.EachPart(func(part param.Part, from, to int) {
		noise := make([]float32, to-from)
		models.NewRand(seed, "shake "+part.Name).Normal(noise, 0.1)
		for i := range noise {
			out[from+i] += noise[i]
		}
	})
}

// Wait drains the stream.
func (r *Rig) Wait() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Env.Stream.Synchronize(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// Forward is the sum of b's losses, without train; with train Backward adds them
// up, and Gradients' Loss has them.
func (r *Rig) Forward(b models.Batch, train bool) float64 {
	r.t.Helper()
	r.loss.F64()[0] = 0
	r.Model.Forward(r.Weights, b, r.loss, train)
	r.Wait()
	return r.loss.F64()[0]
}

// Gradients runs forward and backward over the batches as the micro-steps of one
// step and returns a copy of the gradients, by the names of parts.
func (r *Rig) Gradients(scale float32, batches ...models.Batch) map[string][]float32 {
	r.t.Helper()
	r.Sink.BeginStep()
	r.Loss = 0
	for _, b := range batches {
		r.Sink.BeginMicroStep()
		r.Forward(b, true)
		r.Model.Backward(r.Weights, r.Sink, scale)
		r.Wait()
		r.Loss += r.loss.F64()[0]
	}
	out := map[string][]float32{}
	for _, p := range r.Model.Params() {
		if !p.Frozen {
			p.EachPart(func(part param.Part, from, to int) {
				out[part.Name] = slices.Clone(r.Sink.Grad(p)[from:to])
			})
		}
	}
	return out
}

// RandomBatch is b sequences of t random tokens and targets; about one target in
// five does not count.
func RandomBatch(seed uint64, b, t, vocab int) models.Batch {
	r := models.NewRand(seed, "batch")
	tokens, targets := make([]int32, b*t), make([]int32, b*t)
	for i := range tokens {
		tokens[i] = int32(r.Uint64(uint64(2*i)) % uint64(vocab))
		targets[i] = int32(r.Uint64(uint64(2*i+1))%uint64(vocab+vocab/4)) - int32(vocab/4)
	}
	return Batch(b, t, tokens, targets)
}

// Batch wraps tokens and targets.
func Batch(b, t int, tokens, targets []int32) models.Batch {
	return models.Batch{B: b, T: t, Tokens: models.Ints(tokens), Targets: models.Ints(targets)}
}

// Part is sequences [from, to) of b, cut to the first t positions.
func Part(b models.Batch, from, to, t int) models.Batch {
	var tokens, targets []int32
	for i := from; i < to; i++ {
		tokens = append(tokens, b.Tokens.I32()[i*b.T:i*b.T+t]...)
		targets = append(targets, b.Targets.I32()[i*b.T:i*b.T+t]...)
	}
	return Batch(to-from, t, tokens, targets)
}
