package layer

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

// sink keeps gradients and says for each first Get what add tells.
type sink struct {
	grads map[*param.Param]tensor.Tensor
	add   map[*param.Param]bool
	ready []*param.Param
}

func (s *sink) Get(p *param.Param) (tensor.Tensor, bool) {
	add := s.add[p]
	s.add[p] = true
	return s.grads[p], add
}
func (s *sink) Ready(p *param.Param) { s.ready = append(s.ready, p) }

// bench is a stream, operations, weights and a sink for params, filled with
// random numbers.
func bench(t *testing.T, params ...*param.Param) (Pass, *sink) {
	t.Helper()
	ops, err := cpu.New(1, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream := device.NewCPUStream("compute", nil)
	t.Cleanup(func() {
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
		ops.Close()
	})
	weights, err := param.NewReplica(device.NewCPU(), params)
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{map[*param.Param]tensor.Tensor{}, map[*param.Param]bool{}, nil}
	for _, p := range params {
		models.NewRand(1, p.Name).Normal(weights.Weight(p).F32(), 1)
		s.grads[p] = random(p.Name+" gradient", p.Shape...)
	}
	return Pass{Ops: ops, Stream: stream, Weights: weights, Grads: s}, s
}

func random(name string, shape ...int) tensor.Tensor {
	values := make([]float32, tensor.Numel(shape))
	models.NewRand(2, name).Normal(values, 1)
	return tensor.New(device.Of(values), dtype.F32, shape...)
}

func wait(t *testing.T, p Pass) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Stream.Synchronize(ctx); err != nil {
		t.Fatal(err)
	}
}

func newParam(name string, shape ...int) *param.Param {
	return &param.Param{Name: name, Shape: shape, DType: dtype.F32}
}

// Chunks of any size give the loss and gradients of one chunk, and compute no
// logits twice; without gradients the loss is the same.
func TestHeadInChunksIsTheHeadInOne(t *testing.T) {
	const n, c, v = 13, 6, 17
	targets := make([]int32, n)
	for i := range targets {
		targets[i] = int32(i*5%(v+3)) - 3
	}
	type result struct {
		loss   float64
		dx, dw []float32
	}
	run := func(rows int, add bool) (r result) {
		w := newParam("w", v, c)
		p, s := bench(t, w)
		counted := &countLinear{Ops: p.Ops}
		p.Ops = counted
		s.add[w] = add
		h := NewHead(w, false, n, device.CPU)
		if h.rows != n {
			t.Fatalf("chunks of %d rows for a small vocabulary, want %d", h.rows, n)
		}
		h.rows = rows
		var plan models.Plan
		h.PlanLogits(&plan)
		h.PlanLosses(&plan, n)
		mem, err := plan.Alloc(device.NewCPU())
		if err != nil {
			t.Fatal(err)
		}
		x, dx, loss := random("x", n, c), random("dx", n, c), tensor.New(device.Of(make([]float64, 1)), dtype.F64, 1)
		h.Backward(p, mem, loss, dx, x, models.Ints(targets), 0.5)
		alone := tensor.New(device.Of(make([]float64, 1)), dtype.F64, 1)
		h.Loss(p, mem, alone, x, models.Ints(targets))
		wait(t, p)
		if chunks := (n + rows - 1) / rows; counted.calls != 2*chunks {
			t.Errorf("%d rows a chunk: %d products with the weight, want %d twice", rows, counted.calls, chunks)
		}
		if alone.F64()[0] != loss.F64()[0] {
			t.Errorf("%d rows a chunk: a loss of %v, and %v without gradients", rows, loss.F64()[0], alone.F64()[0])
		}
		if !slices.Equal(s.ready, []*param.Param{w}) {
			t.Errorf("%d rows a chunk: ready %d times", rows, len(s.ready))
		}
		return result{loss.F64()[0], dx.F32(), s.grads[w].F32()}
	}
	for _, add := range []bool{false, true} {
		want := run(n, add)
		for _, rows := range []int{1, 4, 12} {
			got := run(rows, add)
			near(t, []float32{float32(got.loss)}, []float32{float32(want.loss)})
			near(t, got.dx, want.dx)
			near(t, got.dw, want.dw)
		}
	}
}

type countLinear struct {
	models.Ops
	calls int
}

func (c *countLinear) Linear(s device.Stream, y, x, w, b, r tensor.Tensor) {
	c.calls++
	c.Ops.Linear(s, y, x, w, b, r)
}

func near(t *testing.T, got, want []float32) {
	t.Helper()
	for i := range want {
		if d := got[i] - want[i]; !(d <= 1e-5 && d >= -1e-5) {
			t.Errorf("element %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestLogitsStayBelowTheLimit(t *testing.T) {
	for _, c := range []struct{ n, v, rows int }{
		{4096, 256, 4096},   // 4 MiB: one chunk
		{2048, 151936, 108}, // 110 fit: 19 chunks of 108
		{100, 1 << 25, 1},   // a row alone exceeds it
		{64, 262144, 64},    // exactly
		{65, 262144, 33},
	} {
		if got := chunkRows(c.n, 4*c.v, 64<<20); got != c.rows {
			t.Errorf("%d rows of %d: chunks of %d, want %d", c.n, c.v, got, c.rows)
		}
	}
}

// A norm whose weight and bias differ in being frozen, or in having a gradient
// already, gets what a norm does that has both or neither.
func TestLayerNormMixesFlags(t *testing.T) {
	const n, c = 5, 8
	type outcome struct{ dx, dw, db []float32 }
	run := func(freezeW, freezeB, addW, addB bool) outcome {
		w, b := newParam("w", c), newParam("b", c)
		w.Frozen, b.Frozen = freezeW, freezeB
		p, s := bench(t, w, b)
		s.add[w], s.add[b] = addW, addB
		norm := LayerNorm{Weight: w, Bias: b, Eps: 1e-5}
		stats := Stats{Mean: random("mean", n), Rstd: random("rstd", n), Unused: random("unused", c)}
		x, y, dx := random("x", n, c), random("y", n, c), random("dx", n, c)
		norm.Forward(p, y, stats, x)
		norm.Backward(p, dx, random("dy", n, c), x, stats, true)
		wait(t, p)
		return outcome{dx.F32(), s.grads[w].F32(), s.grads[b].F32()}
	}
	over, added := run(false, false, false, false), run(false, false, true, true)
	untouchedW, untouchedB := random("w gradient", c).F32(), random("b gradient", c).F32()
	for _, k := range []struct {
		freezeW, freezeB, addW, addB bool
		dw, db                       []float32
	}{
		{false, false, true, false, added.dw, over.db},
		{false, false, false, true, over.dw, added.db},
		{true, false, false, false, untouchedW, over.db},
		{true, false, false, true, untouchedW, added.db},
		{false, true, true, false, added.dw, untouchedB},
		{true, true, false, false, untouchedW, untouchedB},
	} {
		got := run(k.freezeW, k.freezeB, k.addW, k.addB)
		near(t, got.dx, over.dx)
		near(t, got.dw, k.dw)
		near(t, got.db, k.db)
	}
}
