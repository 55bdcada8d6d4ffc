package gorgonia_test

import (
	"math"
	"testing"

	gt "gorgonia.org/tensor"

	"github.com/gorun-dev/gorun/kernels/cpu"
	"github.com/gorun-dev/gorun/kernels/gemm"
	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/models/gorgonia"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/param"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// sink keeps gradients in memory of its own.
type sink struct {
	grads map[string]tensor.Tensor
	order []string
}

func (s *sink) Get(p *param.Param) (tensor.Tensor, bool) {
	g, seen := s.grads[p.Name]
	if !seen {
		g = tensor.New(device.Of(make([]float32, p.Numel())), dtype.F32, p.Shape...)
		s.grads[p.Name] = g
	}
	return g, seen
}

func (s *sink) Ready(p *param.Param) { s.order = append(s.order, p.Name) }

// trained is a classifier with weights of the seed, and a batch.
type fixture struct {
	*gorgonia.Classifier
	config  gorgonia.Config
	stream  *device.CPUStream
	weights *param.Replica
	batch   models.Batch
	loss    tensor.Tensor
}

func newFixture(t testing.TB, c gorgonia.Config, b int) *fixture {
	t.Helper()
	f := &fixture{config: c, stream: device.NewCPUStream("compute", nil)}
	ops, err := cpu.New(1, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pixels := c.Side * c.Side
	if f.Classifier, err = gorgonia.NewClassifier(c, models.Env{Device: device.NewCPU(), Stream: f.stream, Ops: ops, B: b, T: pixels}); err != nil {
		t.Fatal(err)
	}
	if f.weights, err = param.NewReplica(device.NewCPU(), f.Params()); err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Params() {
		f.Init(p, 7, f.weights.Weight(p).F32())
		if p.NoDecay { // biases that are zero would hide that they are used
			copy(f.weights.Weight(p).F32(), fill[float32](p.Numel(), 3, 0.3))
		}
	}
	tokens, targets := make([]int32, b*pixels), make([]int32, b*pixels)
	for i, v := range fill[float64](len(tokens), 5, 128) {
		tokens[i], targets[i] = int32(v+128), -1
	}
	for i := range b {
		targets[(i+1)*pixels-1] = int32(i % c.Classes)
	}
	f.batch = models.Batch{B: b, T: pixels, Tokens: models.Ints(tokens), Targets: models.Ints(targets)}
	f.loss = tensor.New(device.Of(make([]float64, 1)), dtype.F64, 1)
	t.Cleanup(func() {
		if err := f.stream.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		ops.Close()
	})
	return f
}

func (f *fixture) wait(t testing.TB) {
	t.Helper()
	if err := f.stream.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// reference is the sum of the losses, and how many are right, by plain loops in f64.
func (f *fixture) reference(weights map[string][]float64) (loss float64, right int) {
	c, pixels := f.config, f.batch.T
	for i := range f.batch.B {
		x := make([]float64, pixels)
		for j, v := range f.batch.Tokens.I32()[i*pixels : (i+1)*pixels] {
			x[j] = float64(v) / 255
		}
		side, in := c.Side, 1
		for l, out := range []int{8, 16} {
			if c.Arch == "convnet" {
				x, side = convolved(x, weights["conv"+string(rune('0'+l))+".weight"], side, in, out)
				in = out
			}
		}
		hidden := c.Layers
		if c.Arch == "convnet" {
			hidden = 1
		}
		for l := range hidden {
			name := "hidden" + string(rune('0'+l))
			x = connected(x, weights[name+".weight"], weights[name+".bias"], c.Hidden)
			for j := range x {
				x[j] = max(x[j], 0)
			}
		}
		x = connected(x, weights["output.weight"], weights["output.bias"], c.Classes)
		label, best, sum := int(f.batch.Targets.I32()[(i+1)*pixels-1]), 0, 0.0
		for j, v := range x {
			sum += math.Exp(v)
			if v > x[best] {
				best = j
			}
		}
		if label >= 0 {
			loss += math.Log(sum) - x[label]
			if best == label {
				right++
			}
		}
	}
	return loss, right
}

func connected(x, w, b []float64, out int) []float64 {
	y := append([]float64{}, b...)
	for i, v := range x {
		for j := range out {
			y[j] += v * w[i*out+j]
		}
	}
	return y
}

// convolved is a convolution of 5x5, ReLU and the maximum over 2x2.
func convolved(x, w []float64, side, in, out int) ([]float64, int) {
	n := side - 4
	half := n / 2
	y := make([]float64, out*half*half) // zero: the ReLU's floor
	for o := range out {
		for r := range n {
			for c := range n {
				sum := 0.0
				for i := range in {
					for a := range 5 {
						for b := range 5 {
							sum += w[((o*in+i)*5+a)*5+b] * x[(i*side+r+a)*side+c+b]
						}
					}
				}
				at := (o*half+r/2)*half + c/2
				y[at] = max(y[at], sum)
			}
		}
	}
	return y, half
}

// Losses, gradients and counts are those of plain loops in f64: the gradients by
// central differences, at some places of every parameter.
func TestClassifiersAgreeWithPlainLoops(t *testing.T) {
	const images = 6
	for _, c := range []gorgonia.Config{
		{Arch: "mlp", Layers: 2, Hidden: 9, Side: 5, Classes: 4},
		{Arch: "convnet", Hidden: 11, Side: 16, Classes: 3},
	} {
		t.Run(c.Arch, func(t *testing.T) {
			f := newFixture(t, c, images)
			f.batch.Targets.I32()[3*f.batch.T-1] = -1 // one image does not count
			weights := map[string][]float64{}
			for _, p := range f.Params() {
				for _, v := range f.weights.Weight(p).F32() {
					weights[p.Name] = append(weights[p.Name], float64(v))
				}
			}
			want, right := f.reference(weights)
			near := func(got, want, tolerance float64, what string) {
				t.Helper()
				if d := math.Abs(got - want); !(d <= tolerance*max(math.Abs(want), 1)) {
					t.Errorf("%s is %.9g, want %.9g", what, got, want)
				}
			}

			f.loss.F64()[0] = 10 // to which it is added
			f.Forward(f.weights, f.batch, f.loss, false)
			f.wait(t)
			near(f.loss.F64()[0], 10+want, 1e-6, "the loss of the evaluation")
			if got := f.Correct(); got != right || f.Correct() != 0 {
				t.Errorf("%d images are right, want %d, and none behind that", got, right)
			}

			s := &sink{grads: map[string]tensor.Tensor{}}
			const scale = 0.25
			for again := range 2 { // gradients add up, and so do losses
				f.Forward(f.weights, f.batch, f.loss, true)
				f.Backward(f.weights, s, scale)
				f.wait(t)
				near(f.loss.F64()[0], 10+float64(2+again)*want, 1e-6, "the loss of training")
			}
			if got := f.Correct(); got != 0 {
				t.Errorf("training counts %d images as right", got)
			}
			for _, p := range f.Params() {
				for k := range 12 {
					i := (k*7919 + 3) % p.Numel()
					const h = 1e-5
					at := weights[p.Name][i]
					weights[p.Name][i] = at + h
					above, _ := f.reference(weights)
					weights[p.Name][i] = at - h
					below, _ := f.reference(weights)
					weights[p.Name][i] = at
					near(float64(s.grads[p.Name].F32()[i]), 2*scale*(above-below)/(2*h), 2e-5, p.Name)
				}
			}
		})
	}
}

// A batch of fewer images is as if it were the whole.
func TestASmallerBatchWorksInTheSameMemory(t *testing.T) {
	f := newFixture(t, gorgonia.Config{Arch: "mlp", Layers: 1, Hidden: 5, Side: 4, Classes: 3}, 4)
	grads := func(b int) []float32 {
		s := &sink{grads: map[string]tensor.Tensor{}}
		batch := f.batch
		batch.B = b
		batch.Tokens, batch.Targets = batch.Tokens.Rows(0, b*batch.T), batch.Targets.Rows(0, b*batch.T)
		f.Forward(f.weights, batch, f.loss, true)
		f.Backward(f.weights, s, 1)
		f.wait(t)
		return s.grads["hidden0.weight"].F32()
	}
	grads(4)
	few := grads(1)
	for i := 1; i < 4; i++ {
		f.batch.Targets.I32()[(i+1)*f.batch.T-1] = -1
	}
	for i, v := range grads(4) {
		if v != few[i] {
			t.Fatalf("element %d of a gradient is %v of one image alone, %v of one that counts among four", i, few[i], v)
		}
	}
}

func TestConfigsThatAreNone(t *testing.T) {
	for _, x := range []struct {
		c    gorgonia.Config
		want string
	}{
		{gorgonia.Config{Arch: "mlp", Hidden: 3, Side: 4, Classes: 3}, "0 hidden layers"},
		{gorgonia.Config{Arch: "mlp", Layers: 1, Side: 4, Classes: 3}, "0 hidden units"},
		{gorgonia.Config{Arch: "convnet", Hidden: 3, Side: 15, Classes: 3}, "leaves 11"},
		{gorgonia.Config{Arch: "rnn", Hidden: 3, Side: 16, Classes: 3}, "mlp or convnet"},
	} {
		_, err := x.c.Params()
		wantError(t, err, x.want)
	}
}

func BenchmarkClassifier(b *testing.B) {
	mul, _, err := gemm.Choose("auto")
	if err != nil {
		b.Fatal(err)
	}
	before := gt.WhichBLAS()
	defer gt.Use(before)
	gorgonia.UseProducts(mul, 1)
	for _, c := range []gorgonia.Config{
		{Arch: "mlp", Layers: 1, Hidden: 128, Side: 28, Classes: 10},
		{Arch: "convnet", Hidden: 128, Side: 28, Classes: 10},
	} {
		b.Run(c.Arch, func(b *testing.B) {
			const images = 32
			f := newFixture(b, c, images)
			s := &sink{grads: map[string]tensor.Tensor{}}
			for b.Loop() {
				f.Forward(f.weights, f.batch, f.loss, true)
				f.Backward(f.weights, s, 1)
				f.wait(b)
			}
			b.ReportMetric(float64(images*b.N)/b.Elapsed().Seconds(), "images/s")
		})
	}
}
