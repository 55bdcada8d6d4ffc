package adamw

import (
	"math"

	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// CPU computes on the host. Hyper-parameters are f64 until they meet an element.
type CPU struct {
	pool *workers.Pool
}

// NewCPU computes on the workers of pool.
func NewCPU(pool *workers.Pool) CPU { return CPU{pool} }

// AdamW makes one step, on w, m, v in place with gradient g, all f32 of one
// shape, with ĝ = scale*g:
//
//	w -= lr*decay*w
//	m += (1-beta1)*(ĝ-m)
//	v  = beta2*v + (1-beta2)*ĝ²
//	w -= lr/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + eps)
func (c CPU) AdamW(s device.Stream, w, m, v, g tensor.Tensor, h Hyper) {
	const op = "adamw"
	n := dims(op, w, m, v, g, h)
	wv, mv, vv, gv := w.F32(), m.F32(), v.F32(), g.F32()
	var sv []float64
	if !h.Scale.None() {
		sv = h.Scale.F64()
	}
	c1, c2 := h.corrections()
	k := factors{
		keep:  float32(1 - h.LR*h.WeightDecay),
		rate:  float32(h.LR / c1),
		beta1: float32(1 - h.Beta1),
		beta2: float32(h.Beta2), rest2: float32(1 - h.Beta2),
		root: float32(1 / math.Sqrt(c2)), eps: float32(h.Eps),
		scale: 1,
	}
	workers.Enqueue(s, op, func() error {
		k := k
		if sv != nil {
			if math.IsNaN(sv[0]) || math.IsInf(sv[0], 0) {
				return nil
			}
			k.scale = float32(sv[0])
		}
		c.pool.Range(n, 4096, func(_, from, to int) {
			k.step(wv[from:to], mv[from:to], vv[from:to], gv[from:to])
		})
		return nil
	})
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
