package adamw

import (
	"math"
	"slices"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host. Hyper-parameters are f64 until they meet an element.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

// Clip writes coef[1] = Coefficient(norm2[1], loss[1], limit), all f64.
func (c CPU) Clip(s device.Stream, coef, norm2, loss tensor.Tensor, limit float64) {
	const op = "clip"
	clipDims(op, coef, norm2, loss)
	out, n, l := coef.F64(), norm2.F64(), loss.F64()
	workers.Enqueue(s, op, func() error {
		out[0] = Coefficient(n[0], l[0], limit)
		return nil
	})
}

// AdamW makes one step of every slot, in place, with ĝ = scale*g:
//
//	w -= lr*decay*w
//	m += (1-beta1)*(ĝ-m)
//	v  = beta2*v + (1-beta2)*ĝ²
//	w -= lr/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + eps)
//
// Weights and gradients must be f32 here.
func (c CPU) AdamW(s device.Stream, slots []Slot, h Hyper) {
	const op = "adamw"
	h.check(op)
	for _, t := range slots {
		t.check(op)
		check.Is(op, "w", t.W, dtype.F32, t.W.Shape...)
	}
	slots = slices.Clone(slots)
	workers.Enqueue(s, op, func() error {
		k := h.factors()
		if !h.Scale.None() {
			scale := h.Scale.F64()[0]
			if math.IsNaN(scale) || math.IsInf(scale, 0) {
				return nil
			}
			k.scale = float32(scale)
		}
		for _, t := range slots {
			k := k
			if t.Decay {
				k.keep = float32(1 - h.LR*h.WeightDecay)
			}
			w, m, v, g := t.W.F32(), t.M.F32(), t.V.F32(), t.G.F32()
			c.pool.Range(len(w), 4096, func(_, from, to int) {
				k.step(w[from:to], m[from:to], v[from:to], g[from:to])
			})
		}
		return nil
	})
}

// factors are the constants of a step without weight decay.
func (h Hyper) factors() factors {
	c1, c2 := h.corrections()
	return factors{
		keep:  1,
		rate:  float32(h.LR / c1),
		beta1: float32(1 - h.Beta1),
		beta2: float32(h.Beta2), rest2: float32(1 - h.Beta2),
		root: float32(1 / math.Sqrt(c2)), eps: float32(h.Eps),
		scale: 1,
	}
}

// factors are the constants of a step.
type factors struct {
	keep, rate, beta1, beta2, rest2, root, eps, scale float32
}

func (k *factors) step(w, m, v, g []float32) {
	m, v, g = m[:len(w)], v[:len(w)], g[:len(w)]
	for i := range w {
		gi := g[i] * k.scale
		mi := m[i] + k.beta1*(gi-m[i])
		vi := k.beta2*v[i] + k.rest2*gi*gi
		m[i], v[i] = mi, vi
		w[i] = w[i]*k.keep - k.rate*mi/(float32(math.Sqrt(float64(vi)))*k.root+k.eps)
	}
}
