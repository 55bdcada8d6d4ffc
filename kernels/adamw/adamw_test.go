package adamw

import (
	"math"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

func newCPU(t testing.TB, threads int) (CPU, device.Stream) {
	return NewCPU(kerntest.Pool(t, threads)), kerntest.Stream(t)
}

var hyper = Hyper{LR: 3e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}

// naive is one step in f64, the decay first.
func naive(h Hyper, scale float64, w, m, v, g []float64) {
	for i := range w {
		gi := g[i] * scale
		w[i] -= h.LR * h.WeightDecay * w[i]
		m[i] = h.Beta1*m[i] + (1-h.Beta1)*gi
		v[i] = h.Beta2*v[i] + (1-h.Beta2)*gi*gi
		mHat := m[i] / (1 - math.Pow(h.Beta1, float64(h.Step)))
		vHat := v[i] / (1 - math.Pow(h.Beta2, float64(h.Step)))
		w[i] -= h.LR * mHat / (math.Sqrt(vHat) + h.Eps)
	}
}

func TestAdamWAgainstNaive(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 4097, 20000} {
		var first [3]tensor.Tensor
		for i, threads := range kerntest.Threads {
			r := kerntest.Rand(uint64(n))
			w, m, v := kerntest.Normal(r, 1, n), kerntest.New(n), kerntest.New(n)
			clear(m.F32())
			clear(v.F32())
			w64, m64, v64 := kerntest.F64(w), kerntest.F64(m), kerntest.F64(v)
			c, s := newCPU(t, threads)
			scale := kerntest.Scalar(0.25)
			for step := 1; step <= 10; step++ {
				h := hyper
				h.Step, h.Scale = step, scale
				g := kerntest.Normal(r, math.Pow(10, float64(step%5-3)), n) // from 1e-3 to 10
				c.AdamW(s, []Slot{{W: w, M: m, V: v, G: g, Decay: true}}, h)
				naive(h, 0.25, w64, m64, v64, kerntest.F64(g))
			}
			kerntest.Wait(t, s)
			// Ten steps of f32 roundings. In m, gradients of both signs cancel.
			kerntest.Near(t, "w", w, w64, 1e-6)
			kerntest.Near(t, "m", m, m64, 5e-6)
			kerntest.Near(t, "v", v, v64, 1e-6)
			if i == 0 {
				first = [3]tensor.Tensor{w, m, v}
			}
			kerntest.Equal(t, "w", first[0], w)
			kerntest.Equal(t, "m", first[1], m)
			kerntest.Equal(t, "v", first[2], v)
		}
	}
}

// Two steps written out: w = 1, gradients 0.5 and then -2. The first step moves
// by the learning rate, whatever the gradient's size.
func TestAdamWClosedForm(t *testing.T) {
	w, m, v := kerntest.Of([]float32{1}, 1), kerntest.Of([]float32{0}, 1), kerntest.Of([]float32{0}, 1)
	c, s := newCPU(t, 1)
	h := Hyper{LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: 1}
	c.AdamW(s, []Slot{{W: w, M: m, V: v, G: kerntest.Of([]float32{0.5}, 1), Decay: true}}, h)
	kerntest.Wait(t, s)
	kerntest.Near(t, "w after one step", w, []float64{1*(1-0.001) - 0.1}, 1e-6)
	h.Step = 2
	c.AdamW(s, []Slot{{W: w, M: m, V: v, G: kerntest.Of([]float32{-2}, 1), Decay: true}}, h)
	kerntest.Wait(t, s)
	mHat := (0.9*0.05 + 0.1*-2) / (1 - 0.81)
	vHat := (0.999*0.00025 + 0.001*4) / (1 - 0.998001)
	kerntest.Near(t, "w after two steps", w, []float64{0.899*0.999 - 0.1*mHat/math.Sqrt(vHat)}, 1e-6)
}

// The scale is read when the work runs, and a scale that is not finite skips the step.
func TestAdamWReadsScaleLate(t *testing.T) {
	c, s := newCPU(t, 1)
	w, m, v := kerntest.Of([]float32{1}, 1), kerntest.Of([]float32{0}, 1), kerntest.Of([]float32{0}, 1)
	h := Hyper{LR: 0.1, Beta1: 0.5, Beta2: 0.5, Eps: 1e-8, Step: 1, Scale: kerntest.Scalar(1)}
	held, release := make(chan struct{}), make(chan struct{})
	s.(*device.CPUStream).Do("hold", func() error { close(held); <-release; return nil })
	<-held
	c.AdamW(s, []Slot{{W: w, M: m, V: v, G: kerntest.Of([]float32{8}, 1), Decay: true}}, h)
	h.Scale.F64()[0] = 0.25
	close(release)
	kerntest.Wait(t, s)
	if got := m.F32()[0]; got != 1 {
		t.Errorf("m = %v, want 0.5 * 0.25 * 8", got)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		h.Scale.F64()[0] = bad
		before := []tensor.Tensor{kerntest.Clone(w), kerntest.Clone(m), kerntest.Clone(v)}
		c.AdamW(s, []Slot{{W: w, M: m, V: v, G: kerntest.Of([]float32{8}, 1), Decay: true}}, h)
		kerntest.Wait(t, s)
		for i, x := range []tensor.Tensor{w, m, v} {
			kerntest.Equal(t, "after a skipped step", before[i], x)
		}
	}
}

func TestAdamWRefuses(t *testing.T) {
	c, s := newCPU(t, 1)
	n := kerntest.New
	h := hyper
	kerntest.Panics(t, func() { c.AdamW(s, []Slot{{W: n(3), M: n(3), V: n(3), G: n(3)}}, h) }, "adamw", "step 0")
	h.Step = 1
	kerntest.Panics(t, func() { c.AdamW(s, []Slot{{W: n(3), M: n(3), V: n(3), G: n(4)}}, h) }, "g is f32[4]", "f32[3]")
	h.Scale = n(1)
	kerntest.Panics(t, func() { c.AdamW(s, []Slot{{W: n(3), M: n(3), V: n(3), G: n(3)}}, h) }, "scale is f32[1]")
}

// Slots are independent, and only those that decay do.
func TestAdamWDecaysWhereAsked(t *testing.T) {
	c, s := newCPU(t, 2)
	one := func() tensor.Tensor { return kerntest.Of([]float32{1}, 1) }
	zero := func() tensor.Tensor { return kerntest.Of([]float32{0}, 1) }
	slots := []Slot{{W: one(), M: zero(), V: zero(), G: zero(), Decay: true}, {W: one(), M: zero(), V: zero(), G: zero()}}
	c.AdamW(s, slots, Hyper{LR: 0.5, Beta1: 0.9, Beta2: 0.9, Eps: 1, WeightDecay: 0.5, Step: 1})
	kerntest.Wait(t, s)
	if a, b := slots[0].W.F32()[0], slots[1].W.F32()[0]; a != 0.75 || b != 1 {
		t.Errorf("weights %v and %v, want 0.75 and 1", a, b)
	}
}

func TestClip(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	c, s := newCPU(t, 1)
	for _, k := range []struct{ norm2, loss, limit, want float64 }{
		{4, 1, 1, 1 / (2 + 1e-6)}, {4, 1, 3, 1}, {4, 1, 0, 1}, {0, 0, 1, 1},
		{nan, 1, 1, nan}, {inf, 1, 0, nan}, {4, nan, 1, nan}, {4, inf, 1, nan}, {4, -inf, 1, nan},
	} {
		coef := kerntest.Scalar(-5)
		c.Clip(s, coef, kerntest.Scalar(k.norm2), kerntest.Scalar(k.loss), k.limit)
		kerntest.Wait(t, s)
		if got := coef.F64()[0]; got != k.want && !(math.IsNaN(got) && math.IsNaN(k.want)) {
			t.Errorf("norm² %v, loss %v, limit %v: %v, want %v", k.norm2, k.loss, k.limit, got, k.want)
		}
	}
	kerntest.Panics(t, func() { c.Clip(s, kerntest.New(1), kerntest.Scalar(1), kerntest.Scalar(1), 1) }, "clip", "coef is f32[1]")
}
